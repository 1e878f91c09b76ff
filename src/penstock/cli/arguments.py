"""Arguments that many commands have, and what a shell completes them with.

A press of the tab key must not hang: no server is asked. Names of tables come from the pipeline's state where
that is a file on this machine, opened to be read; whatever is wrong with it, nothing is completed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

LARGEST = 1_000_000
"""Bytes of a configuration file that is read."""
PATIENCE = 0.2
"""Seconds to wait for a store that another process writes to."""


def config_files(incomplete: str) -> list[str]:
    """Return the YAML files that begin so, and the folders on the way to others."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    begun = incomplete.rpartition("/")[0]
    try:
        return sorted(_fitting(folder.expanduser(), f"{begun}/" if "/" in incomplete else "", incomplete))
    except (OSError, RuntimeError):
        return []


def _fitting(folder: Path, begun: str, incomplete: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        shown = f"{begun}{entry.name}"
        hidden = entry.name.startswith(".") and not incomplete.rpartition("/")[2]
        if not shown.startswith(incomplete) or hidden:
            continue
        if entry.is_dir():
            yield f"{shown}/"
        elif entry.name.endswith((".yaml", ".yml")):
            yield shown


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tables of the configuration that was named before, as far as its state is at hand."""
    # Behind an option that waits for its value, arguments are not told apart yet.
    config = ctx.params.get("config") or next(iter(ctx.args), None)
    try:
        names = _names(Path(config)) if config else []
    except Exception:  # nobody asked for an error
        return []
    return [name for name in names if name.startswith(incomplete)]


def _names(config: Path) -> list[str]:
    import sqlite3
    from contextlib import closing

    import yaml

    from penstock.model import TableName

    with config.open(encoding="utf-8") as file:
        document = yaml.safe_load(file.read(LARGEST))
    state = (document.get("state") or {}).get("url", "sqlite:///.penstock/state.db")
    scheme, _, path = os.environ.get("PENSTOCK_STATE__URL", state).partition(":///")
    if scheme != "sqlite":
        return []
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as store:
        rows = store.execute(
            "select distinct schema_name, table_name from state_tables where pipeline = ?",
            (document["pipeline"],),
        )
        return sorted(str(TableName(*row)) for row in rows)


ConfigFile = Annotated[Path, typer.Argument(help="The configuration file.", autocompletion=config_files)]
Tables = Annotated[
    list[str], typer.Argument(help="Tables (globs such as public.order*).", autocompletion=table_names)
]

"""`penstock status`: sources, slots, lag, and every table with its phase."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.consumers import sentence, size

if TYPE_CHECKING:
    from penstock.config import Config

COLOURS = {"ready": "green", "errored": "red"}


def status(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what the pipeline is doing, or where it stopped.

    Example: penstock status shop.yaml --json | jq '.destinations[].tables[] | select(.error)'
    """
    from penstock.config import load
    from penstock.pipeline.status import collect

    with _without_traces(load(config)) as (settings, started):
        document = collect(settings)
    if as_json:
        print(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    document = _for_people(document)
    running = document["running"]
    console.print(f"[bold]{document['pipeline']}[/] {f'runs: {running}' if running else 'does not run'}")
    if not started:
        console.print("nothing was started yet")
    for source in document["sources"]:
        _show_source(console, source)
    for destination in document["destinations"]:
        _show_destination(console, destination)


@contextmanager
def _without_traces(config: Config) -> Iterator[tuple[Config, bool]]:
    """Yield the configuration, and whether there is a store. Where there is none, a temporary one stands in:
    looking at the status creates nothing."""
    from pydantic import SecretStr

    from penstock.config.models import StateConfig

    scheme, _, file = config.state.url.get_secret_value().partition(":///")
    if scheme != "sqlite" or not file or not _is_missing(Path(file)):
        yield config, True
        return
    with tempfile.TemporaryDirectory(prefix="penstock-status-") as folder:
        empty = StateConfig(url=SecretStr(f"sqlite:///{folder}/state.db"))
        yield config.model_copy(update={"state": empty}), False


def _is_missing(file: Path) -> bool:
    try:
        return not file.exists()
    except PermissionError:  # it may well be there
        return False


def _for_people(document: Any) -> Any:
    """Return the document with its texts escaped: neither a terminal nor `rich` obeys them."""
    from penstock.model.text import printable

    if isinstance(document, dict):
        return {key: _for_people(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_for_people(item) for item in document]
    return escape(printable(document)) if isinstance(document, str) else document


def _show_source(console: Console, source: dict[str, Any]) -> None:
    capture = source["capture"]
    if source["error"]:
        console.print(f"source {source['name']}: [red]{_sentence(source['error'])}[/]")
        return
    console.print(
        f"source {source['name']}: slot {source['slot']} {source['slot_state']}, "
        f"{size(source['behind_bytes'])} behind, {size(source['retained_bytes'])} of WAL kept; "
        f"capture {capture['state']}, {size(capture['spooled_bytes'])} in the spool"
    )
    if capture["error"]:
        console.print(f"  [red]{_sentence(capture['error'])}[/]")
    for table in source["left_out"]:
        console.print(f"  [yellow]{table['table']} is left out: {table['reason']}[/]")
    for consumer in source["consumers"]:
        if consumer["kind"] != "table":  # of those the tables themselves tell
            console.print(f"  {sentence(consumer)}")


def _show_destination(console: Console, destination: dict[str, Any]) -> None:
    for stream in destination["streams"]:
        seconds = stream["lag_seconds"]
        console.print(
            f"destination {destination['name']} from {stream['source']}: "
            + (f"{size(stream['lag_bytes'])} behind, " if stream["lag_bytes"] is not None else "")
            + (f"complete through {stream['complete_through']} ({seconds} s ago), " if seconds else "")
            + f"{stream['rows']:,} changes in {stream['batches']:,} batches"
        )
        if stream["error"]:
            console.print(f"  [red]waits since {stream['waiting_since']}: {_sentence(stream['error'])}[/]")
    table = Table("table", "target", "phase", "since", "copied rows", "")
    for state in destination["tables"]:
        phase = state["phase"]
        table.add_row(
            f"{state['source']}: {state['table']}",
            state["target"],
            f"[{COLOURS.get(phase, 'yellow')}]{phase}[/]",
            state["since"][:19],
            f"{state['rows']:,}",
            _copying(state["copy"]) if state["copy"] else "",
        )
    console.print(table)
    for state in destination["tables"]:
        if state["error"]:
            again = f" Tried again at {state['retry_at']}." if state["retry_at"] else ""
            console.print(f"[red]{state['table']}: {_sentence(state['error'])}{again}[/]")


def _copying(copy: dict[str, Any]) -> str:
    left = f", {copy['seconds_left']:.0f} s left" if copy["seconds_left"] is not None else ""
    return f"{size(copy['bytes'])} of {size(copy['total_bytes'])}{left}"


def _sentence(error: dict[str, Any]) -> str:
    place = ", ".join(f"{key} {value}" for key, value in error["where"].items())
    remedy = error["remedy"]
    stop = "." if remedy and not remedy.endswith((".", "?", "!")) else ""
    return f"{error['reason']}{f' ({place})' if place else ''}. {remedy}{stop}"

"""`penstock check`: whether everything that a configuration names can be reached and is ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.postgres.preflight import Check

COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


def check(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each check.")] = False,
) -> None:
    """Check that every source is ready to be captured; change nothing.

    Exits with 1 if a check fails; a warning is no failure.

    Example: penstock check shop.yaml
    """
    from penstock.config import load
    from penstock.postgres import preflight

    loaded = load(config)
    failed = False
    for source in loaded.sources:
        checks = preflight.run(source, loaded.spool.path)
        failed = failed or any(check.outcome == "failure" for check in checks)
        (_as_json if as_json else _for_people)(source.name, checks)
    if failed:
        raise typer.Exit(1)


def _as_json(source: str, checks: list[Check]) -> None:
    import json
    from dataclasses import asdict

    for one in checks:
        print(json.dumps({"source": source, **asdict(one)}, ensure_ascii=False))


def _for_people(source: str, checks: list[Check]) -> None:
    """Plain lines in a pipe; colours on a terminal."""
    typer.secho(source, bold=True)
    for one in checks:
        outcome = typer.style(f"{one.outcome.value:<8}", fg=COLOURS[one.outcome.value])
        typer.echo(f"  {outcome} {one.name}: {one.detail}" + (f". {one.remedy}" if one.remedy else ""))

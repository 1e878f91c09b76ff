"""`penstock teardown`: removes slot, publication and state; never data."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import ConfigFile


def teardown(
    config: ConfigFile,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove slot, publication, spool and state of a pipeline that does not run; its data stays.

    Example: penstock teardown shop.yaml
    """
    from penstock.config import load
    from penstock.pipeline import teardown as removal

    loaded = load(config)
    plan = removal.plan(loaded)
    for line in plan:
        print(line)
    if not yes and not typer.confirm("Remove these?"):
        raise typer.Exit(1)
    for line in removal.remove(loaded):
        print(line)

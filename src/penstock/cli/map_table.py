"""`penstock map`: decides about one table, where the configuration says `mapping: database`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.config import Config


def map_table(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    table: Annotated[str, typer.Argument(help="The table, as `penstock tables` has it.")],
    source: Annotated[str | None, typer.Option(help="Its source, where there are several.")] = None,
    capture: Annotated[
        bool | None, typer.Option("--capture/--no-capture", help="Capture it, or no longer.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="The destination of --target and --kind, where there are several.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Where it arrives: table, or schema.table.")] = None,
    kind: Annotated[str | None, typer.Option(help="As what: clone, append or history.")] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take back what was decided of it: the file says how it is.")
    ] = False,
) -> None:
    """Capture a table or no longer, or change where and as what it arrives, while the pipeline runs or not.

    Example: penstock map shop.yaml public.orders --target app.orders --kind append
    """
    from dataclasses import replace

    from penstock.config import load
    from penstock.config.mapping import Decision, Placing
    from penstock.model.text import printable
    from penstock.pipeline.mapping import TableMapping
    from penstock.pipeline.source_tables import SourceTables
    from penstock.state.store import Store

    if not reset and capture is None and target is None and kind is None:
        raise typer.BadParameter("give one of --capture, --no-capture, --target, --kind, --reset")
    loaded = load(config)
    looked = SourceTables(loaded)
    with Store.open(loaded.state.url.get_secret_value(), loaded.pipeline, exclusive=False) as store:
        mapping = TableMapping(looked, store)
        before = mapping.described(table, source)
        decision = Decision()
        if not reset:
            given = before["decision"]
            decision = Decision.of(given["captured"], given["destinations"])
            if capture is not None:
                decision = replace(decision, captured=capture)
            if target is not None or kind is not None:
                name = to or _only_destination(loaded)
                old = decision.placings.get(name, Placing())
                placing = Placing(target or old.target, kind or old.kind)
                decision = replace(decision, placings={**decision.placings, name: placing})
        after = mapping.decide(table, source, decision, before["revision"])
    arrives = [
        f"{each['destination']}: {each['target']} as {each['kind']}"
        for each in after["destinations"]
        if each["takes_target"] and after["captured"]
    ]
    print(
        printable("; ".join([f"{after['table']}: {'' if after['captured'] else 'not '}captured", *arrives]))
    )
    print(f"{after['takes_effect']}.")


def _only_destination(config: Config) -> str:
    from penstock.pipeline.source_tables import takes_target

    names = [each.name for each in config.destinations if takes_target(each)]
    if len(names) != 1:
        raise typer.BadParameter(f"say --to which destination: {', '.join(names) or 'none takes a target'}")
    return names[0]

"""`penstock consumers`: who reads the spool, how far, and how much is kept for each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.arguments import ConfigFile


def consumers(
    config: ConfigFile,
    forget: Annotated[
        str | None, typer.Option(help="Forget this one: nothing is kept for it any more.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The source, where there are several.")] = None,
) -> None:
    """Show who reads the spool, how far each is, and how much is kept for it.

    Example: penstock consumers shop.yaml --forget old_query
    """
    from penstock.config import load
    from penstock.model.text import printable
    from penstock.pipeline import consumers as readers

    loaded = load(config)
    if forget is not None:
        for name, gone in readers.forget(loaded, forget, source).items():
            for forgotten in gone:
                print(printable(f"{name}: {forgotten} is forgotten"))
        return
    for chosen in [loaded.source(source)] if source else loaded.sources:
        listed = readers.listed(loaded, chosen)
        print(printable(f"source {chosen.name}: {'' if listed else 'nobody reads its spool'}").rstrip())
        for consumer in listed:
            print(printable(f"  {sentence(consumer)}"))


def sentence(consumer: dict[str, Any]) -> str:
    table = f", waits: {consumer['table']}" if consumer["table"] else ""
    kind = " (no destination of the configuration)" if consumer["kind"] == "other" else ""
    behind, kept = size(consumer["behind_bytes"]), size(consumer["kept_bytes"])
    return (
        f"consumer {consumer['name']}{kind} at {consumer['position']}, {behind} behind, "
        f"{kept} kept for it{table}, moved {consumer['updated_at'][:19]}"
    )


def size(count: int | None) -> str:
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return ""

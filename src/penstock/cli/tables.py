"""`penstock tables`: all tables of the sources, and which of them are captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.consumers import size
from penstock.model.text import printable

COLOURS = {"captured": "green", "part": "green", "left out": "red", "not captured": "dim"}
EVERYTHING = 10**9


def tables(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    source: Annotated[str | None, typer.Option(help="Only of this source.")] = None,
    search: Annotated[str, typer.Option(help="Only names with this in them, in capitals or not.")] = "",
    captured: Annotated[
        bool | None, typer.Option("--captured/--not-captured", help="Only these. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List the sources' tables: what can be followed, what is captured, and where it arrives.

    Example: penstock tables shop.yaml --not-captured
    """
    from penstock.config import load
    from penstock.pipeline.source_tables import SourceTables, TableFilter
    from penstock.state.store import Store

    loaded = load(config)
    if source is not None:
        loaded.source(source)  # raises if there is none such
    looked = SourceTables(loaded)
    store = Store.find(loaded.state.url.get_secret_value(), loaded.pipeline)
    try:
        document = looked.browse(store, TableFilter(search, source, captured, 0, EVERYTHING))
    finally:
        if store is not None:
            store.close()
    if as_json:
        print(json.dumps(document))
    else:
        _show(Console(highlight=False, soft_wrap=True, emoji=False), document, len(loaded.sources) > 1)
    if document["errors"]:
        raise typer.Exit(1)


def _show(console: Console, document: dict[str, Any], several: bool) -> None:
    listed = Table(box=None, pad_edge=False)
    for heading in ("source", "table", "rows", "size", "state", "arrives"):
        if several or heading != "source":
            listed.add_column(heading, overflow="fold", justify="right" if heading == "rows" else "left")
    for each in document["tables"]:
        rows = "" if each["rows"] is None else f"{each['rows']:,}"
        state = each["state"] + (f" of {each['part_of']}" if each["state"] == "part" else "")
        cells = [each["table"], rows, size(each["bytes"]), state, _arrives(each)]
        plain = [printable(cell) for cell in ([each["source"]] if several else []) + cells]
        listed.add_row(*map(_escaped, plain), style=COLOURS.get(each["state"], "yellow"))
    if document["tables"]:
        console.print(listed)
    by_file = document["mapping"] == "file"
    decides = "the file decides" if by_file else "`penstock map` and the dashboard decide, then the file"
    counts = f"{document['matching']:,} of {document['total']:,} tables, {document['captured']:,} captured"
    console.print(f"{counts}; {decides}")
    for error in document["errors"]:
        console.print(_escaped(printable(f"{error['reason']}. {error['remedy']}")), style="red")


def _arrives(table: dict[str, Any]) -> str:
    if not table["captured"] or table["state"] == "left out":
        return table["reason"] or ""
    return "; ".join(
        f"{each['destination']}: {each['target']} as {each['kind']}"
        if each["takes_target"]
        else each["destination"]
        for each in table["destinations"]
    )


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)

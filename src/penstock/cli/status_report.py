"""Everything that a status document tells, printed once: for people on a terminal, plain in a pipe.

In a pipe a table is a line, without colours or frames and never cut off; its columns are always the same, and
what is empty is `-`.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.consumers import sentence, size
from penstock.cli.overview import COLOURS, copying
from penstock.cli.sentences import of_error
from penstock.model.text import printable

COLUMNS = ("source", "table", "target", "phase", "since", "copied rows", "progress")
WIDE = 100_000
"""Columns of a line in a pipe: nothing is that long."""

Document = dict[str, Any]


def show(console: Console, document: Document, *, started: bool) -> None:
    document = for_people(document)
    running = document["running"]
    console.print(f"[bold]{document['pipeline']}[/] {f'runs: {running}' if running else 'does not run'}")
    if not started:
        console.print("nothing was started yet")
    if document.get("error"):
        console.print(f"[red]{of_error(document['error'])}[/]")
    for source in document["sources"]:
        _show_source(console, source)
    for destination in document["destinations"]:
        show_destination(console, destination)


def for_people(document: Any) -> Any:
    """Return the document with its texts escaped: neither a terminal nor `rich` obeys them."""
    if isinstance(document, dict):
        return {key: for_people(value) for key, value in document.items()}
    if isinstance(document, list):
        return [for_people(item) for item in document]
    return escape(printable(document)) if isinstance(document, str) else document


def _show_source(console: Console, source: Document) -> None:
    capture = source["capture"]
    if source["error"]:
        console.print(f"source {source['name']}: [red]{of_error(source['error'])}[/]")
        return
    captured = f"capture {capture['state']}, {size(capture['spooled_bytes'])} in the spool"
    console.print(
        f"source {source['name']}: slot {source['slot']} {source['slot_state']}, "
        f"{size(source['behind_bytes'])} behind, {size(source['retained_bytes'])} of WAL kept; "
        + ("capture not seen from here" if capture["spooled_bytes"] is None else captured)
    )
    if capture["error"]:
        console.print(f"  [red]{of_error(capture['error'])}[/]")
    for table in source["left_out"]:
        console.print(f"  [yellow]{table['table']} is left out: {table['reason']}[/]")
    for consumer in source["consumers"]:
        if consumer["kind"] != "table":  # of those the tables themselves tell
            console.print(f"  {sentence(consumer)}")


def show_destination(console: Console, destination: Document) -> None:
    for stream in destination["streams"]:
        seconds = stream["lag_seconds"]
        console.print(
            f"destination {destination['name']} from {stream['source']}: "
            + (f"{size(stream['lag_bytes'])} behind, " if stream["lag_bytes"] is not None else "")
            + (f"complete through {stream['complete_through']} ({seconds} s ago), " if seconds else "")
            + f"{stream['rows']:,} changes in {stream['batches']:,} batches"
        )
        if stream["error"]:
            console.print(f"  [red]waits since {stream['waiting_since']}: {of_error(stream['error'])}[/]")
    if destination["tables"]:
        _show_tables(console, destination["tables"])
    for state in destination["tables"]:
        if state["error"]:
            again = f" Tried again at {state['retry_at']}." if state["retry_at"] else ""
            console.print(f"[red]{state['table']}: {of_error(state['error'])}{again}[/]")


def _show_tables(console: Console, states: list[Document]) -> None:
    rows = [
        (
            state["source"],
            state["table"],
            state["target"],
            f"[{COLOURS.get(state['phase'], 'yellow')}]{state['phase']}[/]",
            state["since"][:19],
            f"{state['rows']:,}",
            copying(state["copy"]) if state["copy"] else "",
        )
        for state in states
    ]
    if console.is_terminal:
        console.print(_table(rows, Table()))
        return
    bare = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    written = Console(file=StringIO(), width=WIDE, highlight=False, emoji=False)
    with written.capture() as captured:
        written.print(_table([tuple(cell or "-" for cell in row) for row in rows], bare))
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def _table(rows: Sequence[Sequence[str]], table: Table) -> Table:
    for name in COLUMNS:
        table.add_column(name, justify="right" if name == "copied rows" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table

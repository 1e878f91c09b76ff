"""A pipeline in a few lines, for a terminal that is redrawn: `run`, `status --watch` and the demo show it.

Made of a look at the pipeline's status with its rates. However many tables there are, it stays small: tables
are counted by phase, and only those that are being copied, or stopped, have a line of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.consumers import size
from penstock.cli.sentences import of_error
from penstock.model.text import printable

COLOURS = {"ready": "green", "errored": "red"}
MOST_COPIES = 8
MOST_ERRORS = 4
ORDER = ("errored", "paused", "init", "data_sync", "finished_copy", "ready")
BAR, NAME = 24, 40
"""Columns of a progress bar, and of a table's name at most: the rest of the line tells more."""

Document = dict[str, Any]


def heading(pipeline: str, state: str, address: str | None = None) -> Text:
    """Return the first line: what it is called, what it does, where the dashboard is."""
    line = Text(printable(pipeline), style="bold")
    line.append(f" {printable(state)}", style="not bold")
    if address:
        line.append(f"   {address}", style="not bold cyan")
    return line


def overview(document: Mapping[str, Any], title: Text | None = None, note: str = "") -> RenderableType:
    """Return the look in lines, between a title and a note."""
    lines: list[RenderableType] = [*([title] if title else []), *_said(document.get("error"))]
    for source in document.get("sources", ()):
        lines += _source(source)
    for destination in document.get("destinations", ()):
        lines += _destination(destination)
    return Group(*lines, *([Text(note, style="dim")] if note else []))


def _said(error: Document | None, about: str = "") -> Iterator[Text]:
    if error:
        yield Text(printable(f"{about}{of_error(error)}"), style="red")


def _source(source: Document) -> Iterator[RenderableType]:
    name, capture = printable(source["name"]), source["capture"]
    if source["error"]:
        yield from _said(source["error"], f"{name}: ")
        return
    if source["slot_state"] in ("missing", None):
        yield _line(name, "no slot yet")
        return
    yield _line(
        name,
        *_rate(source, "changes"),
        f"{size(source['behind_bytes'])} behind",
        f"{size(source['retained_bytes'])} of WAL kept",
        *([] if capture["spooled_bytes"] is None else [f"{size(capture['spooled_bytes'])} in the spool"]),
    )
    yield from _said(capture["error"], "  ")


def _destination(destination: Document) -> Iterator[RenderableType]:
    for stream in destination["streams"]:
        yield _line(
            printable(f"{stream['source']} → {destination['name']}"),
            *_rate(stream, "rows"),
            *_behind(stream),
            f"{stream['rows']:,} changes in {stream['batches']:,} batches",
        )
        yield from _said(stream["error"], "  waits: ")
    if destination["tables"]:
        yield _phases(destination["tables"])
    copies = [table for table in destination["tables"] if table["copy"]]
    if copies:
        yield _bars(copies)
    yield from _errors([table for table in destination["tables"] if table["error"]])


def _line(name: str, *facts: str) -> Text:
    return Text(f"{name}: ", style="bold").append(", ".join(facts), style="not bold")


def _rate(about: Document, what: str) -> Iterator[str]:
    if about.get("rates", {}).get(what) is not None:
        yield f"{about['rates'][what]:,.0f} changes/s"


def _behind(stream: Document) -> Iterator[str]:
    if stream["lag_bytes"] is not None:
        seconds = stream["lag_seconds"]
        yield f"{size(stream['lag_bytes'])}{'' if seconds is None else f' and {seconds:.1f} s'} behind"


def _phases(tables: list[Document]) -> Text:
    counted = Counter(table["phase"] for table in tables)
    line = Text("  ")
    for place, phase in enumerate(phase for phase in ORDER if counted[phase]):
        line.append(", " if place else "")
        line.append(f"{counted[phase]:,} {phase.replace('_', ' ')}", style=COLOURS.get(phase, "yellow"))
    return line


def _bars(copies: list[Document]) -> Table:
    """The largest have what people wait for."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="ellipsis", no_wrap=True, max_width=NAME)
    grid.add_column(no_wrap=True, min_width=BAR)
    grid.add_column(justify="right", no_wrap=True, min_width=len("100 %"))
    grid.add_column(no_wrap=True)
    ordered = sorted(copies, key=lambda table: -table["copy"]["total_bytes"])
    for table in ordered[:MOST_COPIES]:
        copy = table["copy"]
        total = max(copy["total_bytes"], copy["bytes"], 1)
        grid.add_row(
            f"  {printable(table['table'])}",
            ProgressBar(total, copy["bytes"], width=BAR),
            f"{100 * copy['bytes'] / total:.0f} %",
            copying(copy),
        )
    if len(ordered) > MOST_COPIES:
        grid.add_row(f"  and {len(ordered) - MOST_COPIES} more", "", "", "")
    return grid


def copying(copy: Document) -> str:
    """Return how far a copy is, and how long it will take."""
    left = f", {duration(copy['seconds_left'])} left" if copy["seconds_left"] is not None else ""
    return f"{size(copy['bytes'])} of {size(copy['total_bytes'])}{left}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _errors(stopped: list[Document]) -> Iterator[Text]:
    for table in stopped[:MOST_ERRORS]:
        yield from _said(table["error"], f"  {table['table']} {table['phase']}: ")
    if len(stopped) > MOST_ERRORS:
        yield Text(f"  and {len(stopped) - MOST_ERRORS} more: penstock status tells of all", style="red")

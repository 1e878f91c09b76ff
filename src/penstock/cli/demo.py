"""`penstock demo`: the whole way on an embedded PostgreSQL, with a proof at the end."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import stat
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from penstock.cli.ending import Ending

if TYPE_CHECKING:
    from penstock.demo.run import DemoProgress, Verdict


class To(StrEnum):
    FILES = "files"
    NATS = "nats"
    POSTGRES = "postgres"
    SPARK = "spark"


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long the shop trades.")] = 20,
    rows: Annotated[int, typer.Option(min=1, help="Rows that the shop begins with.")] = 10_000,
    keep: Annotated[
        Path | None, typer.Option(help="Keep everything in this folder, to look at it afterwards.")
    ] = None,
    to: Annotated[
        To, typer.Option(help="Where a pipeline delivers it; `spark`: a stream of your own, without one.")
    ] = To.FILES,
) -> None:
    """Deliver a live shop's changes, then prove that source and destination are equal.

    Example: penstock demo --to postgres --seconds 60 --keep /tmp/shop
    """
    from penstock import logs
    from penstock.demo.delivery import DeliveryDemo
    from penstock.demo.ends import End, FilesEnd, PostgresEnd
    from penstock.demo.mirrored import NatsEnd
    from penstock.demo.run import Demo

    logs.to_stderr(logging.WARNING)
    end = "stream" if to is To.SPARK else "destination"
    console = Console(highlight=False)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not {'empty' if keep.is_dir() else 'a folder'}")
    os.umask(0o077)
    with Ending() as ending, _folder(keep) as folder:

        def tell(text: str) -> None:
            console.print(f"[dim]{text} …[/]")

        ends: dict[To, Callable[[Path], End]] = {
            To.FILES: FilesEnd,
            To.NATS: NatsEnd,
            To.POSTGRES: PostgresEnd,
        }
        running = (
            Demo(folder, tell, ending.held)
            if to is To.SPARK
            else DeliveryDemo(folder, tell, ends[to], ending.held)
        )
        seen: list[DemoProgress] = []
        announced: list[str] = []
        verdict: list[bool] = []
        with console.status("") as status:

            def show(progress: DemoProgress) -> None:
                if not seen:
                    command = [_program(), "tail" if to is To.SPARK else "status", str(running.file)]
                    console.print(
                        f"The shop trades. In another terminal: {shlex.join(command)}", soft_wrap=True
                    )
                    if running.files:
                        console.print(f"The files: {running.files}", soft_wrap=True)
                if running.dashboard and running.dashboard not in announced:
                    announced.append(running.dashboard)
                    console.print(f"The dashboard: {running.dashboard}", soft_wrap=True)
                seen.append(progress)
                status.update(_shown(progress))

            def proven(verdicts: list[Verdict]) -> None:
                status.stop()
                console.print(_line(seen[-1]), soft_wrap=True)
                verdict.append(_report(console, verdicts, running.problems, end))
                _linger(console, running.dashboard, ending)

            running.run(seconds, rows, show, proven)
        if keep is not None:
            console.print(f"Everything is in {folder}", soft_wrap=True)
        elif running.files:
            console.print("The files are removed now. `--keep FOLDER` keeps them.")
    raise typer.Exit(0 if verdict == [True] else 1)


def _program() -> str:
    """Return what to type to start this program once more."""
    started = sys.argv[0]
    on_path = shutil.which("penstock")
    if Path(started).name != "penstock" or (on_path and Path(on_path).samefile(started)):
        return "penstock"
    from_here = os.path.relpath(started)
    return min(started, from_here if "/" in from_here else f"./{from_here}", key=len)


def _is_watched(console: Console) -> bool:
    """Whether somebody is at the terminal: nobody is where a pipe or a job in the background is."""
    return console.is_terminal and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


def _linger(console: Console, dashboard: str | None, ending: Ending) -> None:
    """Wait for Enter or Ctrl-C where somebody may want to look at the dashboard."""
    if dashboard is None or not _is_watched(console):
        return
    console.print(f"The dashboard is still there: {dashboard} Press Enter to end.", soft_wrap=True)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed while the shop traded
    try:
        sys.stdin.readline()
    except KeyboardInterrupt:
        if not ending.is_interrupt:
            raise
    console.print("[dim]Stopping …[/]")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the demo's folder. Under root the server runs as another user, which must be able to enter it."""
    folder = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="penstock-demo-", dir="/tmp"))
    try:
        missing = [place for place in folder.parents if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, *missing):
            status = place.stat()
            if os.geteuid() == status.st_uid == 0:
                place.chmod(stat.S_IMODE(status.st_mode) | 0o711)
        yield folder
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _shown(progress: DemoProgress) -> RenderableType:
    """Return the line, and the pipeline below it, if there is one."""
    from penstock.cli.overview import overview

    if progress.status is None:
        return _line(progress)
    return Group(
        f"{progress.seconds:4.0f} s  {progress.transactions:,} transactions", overview(progress.status)
    )


def _line(progress: DemoProgress) -> str:
    return (
        f"{progress.seconds:4.0f} s  {progress.transactions:,} transactions  "
        f"{progress.changes:,} changes in {progress.batches:,} batches  "
        + (f"last batch {progress.batch_ms} ms  " if progress.batch_ms else "")
        + f"{progress.behind_bytes:,} bytes behind"
    )


def _report(console: Console, verdicts: list[Verdict], problems: Sequence[str], end: str = "stream") -> bool:
    table = Table("table", "rows", "source", end, "")
    for verdict in verdicts:
        sums = (
            f"{verdict.source.total & (1 << 64) - 1:016x}",
            f"{verdict.stream.total & (1 << 64) - 1:016x}",
        )
        table.add_row(
            str(verdict.table),
            f"{verdict.source.rows:,}",
            *sums,
            "[green]equal[/]" if verdict.equal else f"[red]not equal[/] ({verdict.stream.rows:,} rows)",
        )
    console.print(table)
    for problem in problems[:5]:
        console.print(f"[red]{problem}[/]")
    equal = all(verdict.equal for verdict in verdicts) and not problems
    console.print(
        f"[green]Source and {end} are equal.[/]" if equal else f"[red]Source and {end} are NOT equal.[/]"
    )
    return equal

"""`penstock mirror`: a local SQLite file that is kept equal to the source, from a NATS destination."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import patterns
from penstock.cli.arguments import ConfigFile, table_names

if TYPE_CHECKING:
    from penstock.consumer import Mirror

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SQLITE = "sqlite:///"


def mirror(
    config: ConfigFile,
    to: Annotated[str, typer.Option(help="The file: sqlite:///file.db")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this table (a glob such as sales.*); may be repeated.", autocompletion=table_names
        ),
    ] = None,
    destination: Annotated[
        str | None, typer.Option(help="The destination. Default: the only one of type nats.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all is applied that was published at the start.")
    ] = False,
) -> None:
    """Keep a SQLite file equal to the source, from snapshots and changes of a NATS destination, until Ctrl-C.

    Example: penstock mirror shop.yaml --to sqlite:///shop.db --table users --table 'sales.*'
    """
    path = _path(to)
    patterns.check(table or [])
    from penstock.cli.nats_destination import consumer_access, nats_options
    from penstock.config import load
    from penstock.consumer import Mirror

    access = consumer_access(nats_options(load(config), destination))
    number = asyncio.run(_run(Mirror(access, path, table or [], _tell), once))
    if number:
        raise typer.Exit(128 + number)


async def _run(mirror: Mirror, once: bool) -> int:
    """Run it to its end, or to a signal, which is returned. What is not written yet, the next start does."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    caught = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, end, number)
    try:
        await mirror.run(once=once)
    except asyncio.CancelledError:
        if not came:
            raise
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
    return came[0] if came else 0


def _path(url: str) -> Path:
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        raise typer.BadParameter(
            "expected sqlite:///file.db, or sqlite:////absolute/file.db", param_hint="--to"
        )
    return Path(url.removeprefix(_SQLITE))


def _tell(sentence: str) -> None:
    from penstock.model.text import printable

    print(printable(sentence), flush=True)

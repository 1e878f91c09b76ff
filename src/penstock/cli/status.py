"""`penstock status`: sources, slots, lag, and every table with its phase; `--watch` goes on looking."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from penstock.cli.arguments import ConfigFile

if TYPE_CHECKING:
    from penstock.cli.status_looks import StatusLook
    from penstock.config import Config

EVERY = 2.0
"""Seconds between two looks, where nobody says otherwise."""
SHORTEST = 0.2


class StatusCommand(TyperCommand):
    """`--watch` may stand alone: only a number behind it is its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        if "--watch" in given:
            place = given.index("--watch")
            number = given[place + 1 : place + 2]
            alone = not number or not re.fullmatch(r"\d+(\.\d*)?|\.\d+", number[0])
            given[place : place + (1 if alone else 2)] = [f"--watch={EVERY if alone else number[0]}"]
        return super().parse_args(ctx, given)


def status(
    config: ConfigFile,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with --watch one for each look.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="[SECONDS]",
            min=SHORTEST,
            help=f"Look again every so many seconds ({EVERY:g} if none are given), until Ctrl-C.",
        ),
    ] = None,
) -> None:
    """Show what the pipeline is doing, or where it stopped.

    Example: penstock status shop.yaml --json | jq '.destinations[].tables[] | select(.error)'
    """
    from penstock.cli.ending import Ending
    from penstock.config import load

    loaded = load(config)
    # What is no terminal is as wide as it takes; `soft_wrap` leaves lines to it.
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    try:
        if watch is None:
            _once(loaded, console, as_json=as_json)
        elif console.is_terminal and not as_json:
            with Ending():  # or a terminal whose command was killed has no cursor any more
                _redraw(loaded, watch)
        else:
            _repeat(loaded, console, watch, as_json=as_json)
    except (KeyboardInterrupt, typer.Exit):
        if watch is None:
            raise
        raise typer.Exit from None  # that is how one leaves it


def _once(config: Config, console: Console, *, as_json: bool) -> None:
    from penstock.cli.status_looks import look

    _print(console, look(config), as_json=as_json)


def _repeat(config: Config, console: Console, seconds: float, *, as_json: bool) -> None:
    """Print it again and again, with an empty line between two looks."""
    from penstock.cli.status_looks import looks

    for number, seen in enumerate(looks(config, seconds)):
        if number and not as_json:
            console.print()
        _print(console, seen, as_json=as_json)


def _print(console: Console, seen: StatusLook, *, as_json: bool) -> None:
    from penstock.cli.status_report import show

    if as_json:
        print(json.dumps(seen.document), flush=True)
    else:
        show(console, seen.document, started=seen.started)
        console.file.flush()


def _redraw(config: Config, seconds: float) -> None:
    """Show the overview in place of the one before; the last one stays when it ends."""
    from rich.live import Live

    from penstock.cli.overview import heading, overview
    from penstock.cli.status_looks import looks

    console = Console(highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in looks(config, seconds):
            document = seen.document
            runs = f"runs: {document['running']}" if document["running"] else "does not run"
            state = runs if seen.started else "does not run; nothing was started yet"
            title = heading(document["pipeline"], state)
            live.update(overview(document, title, f"every {seconds:g} s; Ctrl-C leaves"), refresh=True)

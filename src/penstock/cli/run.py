"""`penstock run`: the pipeline, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer


def run(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all that had committed at the start is delivered.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell of every batch.")] = False,
) -> None:
    """Copy the tables, then follow them, until Ctrl-C.

    Example: penstock run shop.yaml
    """
    from penstock import logs
    from penstock.config import load
    from penstock.model.errors import ConfigError

    loaded = load(config)
    if not loaded.destinations:
        raise ConfigError("the configuration has no destinations", file=config, remedy="Add one")
    logs.to_stderr(logging.DEBUG if verbose else logging.INFO)
    from penstock.pipeline.pipeline import Pipeline

    stop = threading.Event()
    before = _on_signals(stop)
    try:
        whole = Pipeline(loaded, stop).run(once=once)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise typer.Exit(1 if once and not whole else 0)


def _on_signals(stop: threading.Event) -> dict[int, Any]:
    """The first Ctrl-C or SIGTERM asks for a stop in good order, a second one insists."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    return {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}

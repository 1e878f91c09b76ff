"""`penstock run`: the pipeline, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from penstock.logs import LogFormat, LogLevel


def run(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all that had committed at the start is delivered.")
    ] = False,
    http: Annotated[
        bool | None,
        typer.Option("--http/--no-http", help="Serve HTTP meanwhile; by default, but not with --once."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell of every batch.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="How lines of the log are written.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is written.")
    ] = LogLevel.INFO,
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
    level = logging.DEBUG if verbose else log_level.number
    logs.to_stderr(level, log_format)
    from penstock.monitoring.launch import monitored
    from penstock.pipeline.pipeline import Pipeline

    stop = threading.Event()
    before = _on_signals(stop)
    try:
        pipeline = Pipeline(loaded, stop)
        with monitored(pipeline, level, log_format, serve=not once if http is None else http):
            whole = pipeline.run(once=once)
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

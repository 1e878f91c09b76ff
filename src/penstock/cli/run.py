"""`penstock run`: the pipeline, until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import nullcontext
from types import FrameType
from typing import Annotated, Any

import typer

from penstock.cli.arguments import ConfigFile
from penstock.logs import LogFormat, LogLevel

STOPPING = "stopping: batches at hand are finished first; Ctrl-C once more insists"


def run(
    config: ConfigFile,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all that had committed at the start is delivered.")
    ] = False,
    http: Annotated[
        bool | None,
        typer.Option("--http/--no-http", help="Serve HTTP meanwhile; by default, but not with --once."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell of every batch.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines of the log alone, also on a terminal.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="How lines of the log are written.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is written.")
    ] = LogLevel.INFO,
) -> None:
    """Copy the tables, then follow them, until Ctrl-C.

    On a terminal, progress and lag are shown below the log.

    Example: penstock run shop.yaml
    """
    from penstock import logs
    from penstock.config import load
    from penstock.model.errors import ConfigError

    loaded = load(config)
    if not loaded.destinations:
        raise ConfigError("the configuration has no destinations", file=config, remedy="Add one")
    level = logging.DEBUG if verbose else log_level.number
    stop = threading.Event()
    view = None
    if not plain and log_format is LogFormat.TEXT and _is_watched():
        from penstock.cli.run_view import RunView

        view = RunView(loaded, stop)
    before = _on_signals(stop)
    try:
        with view or nullcontext():
            logs.to_stderr(level, log_format, coloured=view is not None)
            threading.Thread(target=_tell_of_stop, args=(stop,), daemon=True).start()
            from penstock.monitoring.launch import monitored
            from penstock.pipeline.pipeline import Pipeline

            pipeline = Pipeline(loaded, stop)
            serve = not once if http is None else http
            with monitored(pipeline, level, log_format, serve=serve, watched=view is not None) as monitoring:
                if view and monitoring:
                    view.address = lambda: monitoring.url
                whole = pipeline.run(once=once)
    finally:
        logs.to_stderr(level, log_format)
        for number, handler in before.items():
            signal.signal(number, handler)
    raise typer.Exit(1 if once and not whole else 0)


def _is_watched() -> bool:
    """Whether standard error is a terminal that can be redrawn, and ours: not a shell's that works on."""
    if not sys.stderr.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:
        return False


def _tell_of_stop(stop: threading.Event) -> None:
    """Say at once that a stop was heard of: it may take a while. (A signal's handler must not write.)"""
    import structlog

    stop.wait()
    structlog.get_logger("penstock.pipeline").info(STOPPING)


def _on_signals(stop: threading.Event) -> dict[int, Any]:
    """The first Ctrl-C or SIGTERM asks for a stop in good order, a second one insists."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    return {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}

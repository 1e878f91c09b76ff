"""Log lines go to standard error, plain where nobody is looking at a terminal; as text, logfmt or JSON.

A line is a line: control characters in names and values are shown escaped. Errors that nobody foresaw are
told by where they were raised, without local variables: there are passwords and rows among those.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict

from penstock.model.text import plain_traceback, printable

TABLE_ROWS = "table_rows"
"""A field of an event that is for metrics alone: the changes of a batch, by table."""
Take = Callable[[Mapping[str, Any]], None]
"""Is given every event, with all its fields."""


class LogFormat(StrEnum):
    TEXT = "text"
    LOGFMT = "logfmt"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        return getattr(logging, self.name)  # type: ignore[no-any-return]


def to_stderr(
    level: int = logging.INFO,
    format: str = LogFormat.TEXT,
    take: Take | None = None,
    *,
    coloured: bool = False,
) -> None:
    """Write what is told from this level on; `take` is given the rest, too. `coloured`: also where standard
    error is no terminal, since it leads to one."""
    is_text = format == LogFormat.TEXT
    stamp = {"fmt": "%Y-%m-%d %H:%M:%S"} if is_text else {"fmt": "iso", "utc": True}
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(**stamp),
            *([] if take is None else [_Passing(take, level)]),
            _in_one_line,
            *([] if is_text else [_with_traceback]),
            _renderer(format, coloured or sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level if take is None else logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lines(_own_stderr()))),
    )
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _renderer(format: str, coloured: bool) -> Any:
    if format == LogFormat.JSON:
        return structlog.processors.JSONRenderer()
    if format == LogFormat.LOGFMT:
        return structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], bool_as_flag=False
        )
    return structlog.dev.ConsoleRenderer(colors=coloured, pad_event_to=20, exception_formatter=_raised)


class _Passing:
    """Passes events on; those below the level go no further."""

    def __init__(self, take: Take, level: int) -> None:
        self._take = take
        self._level = level

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        self._take(event)
        if logging.getLevelName(event["level"].upper()) < self._level:
            raise structlog.DropEvent
        return event


def _own_stderr() -> TextIO:
    """Return standard error by a descriptor of its own: while Spark's JVM is started, number 2 is its log."""
    try:
        if sys.stderr.fileno() != 2:
            return sys.stderr
        return os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except OSError:  # somebody has put something else in its place, or closed it
        return sys.stderr


class _Lines:
    """Where lines go that nobody stops for: on a full disk they are lost, and the work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _in_one_line(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {
        key: value if key == "exc_info" or isinstance(value, int | float | None) else printable(str(value))
        for key, value in event.items()
        if key != TABLE_ROWS
    }


def _with_traceback(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Put down where an error was raised, as a field."""
    raised = event.pop("exc_info", None)
    if raised:
        error = raised if isinstance(raised, BaseException) else sys.exc_info()[1]
        event["exception"] = plain_traceback(error) if error else ""
    return event


def _raised(output: TextIO, raised: structlog.typing.ExcInfo) -> None:
    output.write("\n" + plain_traceback(raised[1]))


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        print(plain_traceback(error), file=sys.stderr)


def _uncaught_in_thread(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is not None and not issubclass(raised.exc_type, SystemExit):
        print(plain_traceback(raised.exc_value), file=sys.stderr)

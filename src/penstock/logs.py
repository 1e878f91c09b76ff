"""Log lines go to standard error, plain where nobody is looking at a terminal.

A line is a line: control characters in names and values are shown escaped. Errors that nobody foresaw are
told by where they were raised, without local variables: there are passwords and rows among those.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from penstock.model.text import plain_traceback, printable


def to_stderr(level: int = logging.INFO) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S"),
            _in_one_line,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), pad_event_to=20, exception_formatter=_raised
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lines(sys.stderr))),
    )
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


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


def _in_one_line(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {
        key: value if key == "exc_info" or isinstance(value, int | float | None) else printable(str(value))
        for key, value in event.items()
    }


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

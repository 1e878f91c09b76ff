"""Log lines go to standard error, plain where nobody is looking at a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def to_stderr(level: int = logging.INFO) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=20),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )

"""What keeps a capture from capturing, in the pipeline's log.

The capture has a log of its own, in the spool's folder; that may be on the disk that is full.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from penstock.capture import state as capture_state
from penstock.model.errors import from_dict

LOOK = 1.0
"""Seconds between two looks at what the capture reports."""


class CaptureTrouble:
    def __init__(self, source: str, spool: Path) -> None:
        self._spool = spool
        self._looked = 0.0
        self._told: tuple[str, str] | None = None
        self._process: int | None = None
        self._connections = 1
        """That the process has made, as far as was told."""
        self._log = structlog.get_logger("penstock.pipeline").bind(source=source)

    def look(self, capture: int | None, now: float) -> None:
        """Tell once what this process reports, if anything, and when it is over, with how often it connected
        again: an outage may be too short to be seen by itself. `now` is by `time.monotonic`."""
        if now - self._looked < LOOK:
            return
        self._looked = now
        try:
            reported = capture_state.read(self._spool)
        except OSError:  # who reads the spool tells of it
            return
        if reported.get("pid") != capture:
            return  # what an earlier one left
        if self._process != capture:
            self._process, self._connections = capture, 1
        state, error = reported.get("state"), reported.get("error")
        if error is not None and self._told != (trouble := (error["kind"], error["reason"])):
            self._told = trouble
            self._log.warning(f"capture {state}", error=str(from_dict(error)))
        elif state == "streaming":
            connections = max(reported.get("connections", 1), self._connections)
            reconnects, self._connections = connections - self._connections, connections
            if reconnects or self._told is not None:
                self._told = None
                self._log.info("capture goes on", reconnects=reconnects)

"""What a capture is doing, told to people (the log) and to other processes (a small file in the spool).

States: `starting`, `streaming`, `paused` (the disk is full), `retrying` (the source cannot be reached),
`failed`, `stopped`. The file says whose state it is, and how many connections that process has streamed by;
whether it still lives is told by the spool's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import structlog

from penstock.model import private
from penstock.model.errors import PenstockError, to_dict
from penstock.spool.writer import captured_by

FILE = "capture.json"
SIZE = 4096
"""Bytes, with blanks at the end: room for what is to be told when there is no other."""


class Report(Protocol):
    def __call__(self, state: str, error: PenstockError | None = None, **detail: Any) -> None: ...


def reporter(source: str, spool: Path) -> Report:
    log = structlog.get_logger("penstock.capture")
    last, connections = "", 0

    def report(state: str, error: PenstockError | None = None, **detail: Any) -> None:
        nonlocal last, connections
        connections += (last, state) == ("starting", "streaming")
        last = state
        tell: Callable[..., None] = log.warning if error else log.info
        fields = detail | ({"error": str(error)} if error else {})
        tell(f"capture {state}", source=source, **fields)
        if captured_by(spool) not in (None, os.getpid()):
            return  # the file tells of the process that captures, not of one that waits for its turn
        document = {
            "state": state,
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "connections": connections,
            "error": to_dict(error) if error else None,
        }
        with contextlib.suppress(OSError):
            _write(spool, json.dumps(document).encode().ljust(SIZE))

    return report


def _write(spool: Path, document: bytes) -> None:
    """Write a new file, so that a reader has it whole; on a full disk, overwrite the last one."""
    private.folder(spool)
    fresh = spool / f"{FILE}.new"
    try:
        with open(fresh, "wb", opener=private.opener) as file:
            file.write(document)
        fresh.rename(spool / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        with open(spool / FILE, "r+b", buffering=0, opener=private.opener) as file:
            file.write(document)
            file.truncate(len(document))


def read(spool: Path) -> dict[str, Any]:
    """Return the last state reported; empty if there is none."""
    try:
        document: dict[str, Any] = json.loads((spool / FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return document

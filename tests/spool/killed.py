"""A spool's writer that kills itself at a named point of its second cut, for the test of that name."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.model import Lsn
from penstock.spool.manifest import Manifest
from penstock.spool.writer import SpoolWriter
from tests.spool.rows import IDENTITY, START, transaction

COMMITS = [0x2000, 0x3000, 0x4000]
ROWS = [(0, 1), (1, 2), (2, 1)]
POINTS = [
    "before_fsync",
    "after_fsync",
    "after_rename",
    "in_manifest",
    "after_manifest",
    "in_large_transaction",
]
IN_RETIRE = "in_retire"
"""Retired from the manifest, the file still there."""


def rows(commit: int) -> pa.RecordBatch:
    return transaction(commit, *(table for _, table in ROWS))


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        _die()

    return wrapped


def main(point: str, path: Path) -> None:
    writer = SpoolWriter(
        path, IDENTITY, START, segment_bytes=1 if point == "in_large_transaction" else 1 << 20
    )
    writer.append(rows(COMMITS[0]), len(ROWS), Lsn(COMMITS[0] + 8))
    writer.cut()
    match point:
        case "before_fsync":
            os.fsync = _die
        case "after_fsync":
            Path.rename = _die  # type: ignore[method-assign,assignment]
        case "after_rename":
            Manifest.record = _die  # type: ignore[method-assign]
        case "in_manifest":
            writer.manifest._db.create_function("die", 0, _die)
            writer.manifest._db.execute(
                "create temp trigger t after insert on main.parts begin select die(); end"
            )
        case "after_manifest":
            Manifest.record = _then_die(Manifest.record)  # type: ignore[method-assign]
        case "in_large_transaction":
            writer.append(rows(COMMITS[1]), 0, None)
            writer.relieve()
            _die()
    writer.append(rows(COMMITS[1]), len(ROWS), Lsn(COMMITS[1] + 8))
    writer.cut()
    if point == IN_RETIRE:
        Path.unlink = _die  # type: ignore[method-assign]
        writer.retire(Lsn(COMMITS[0] + 8))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

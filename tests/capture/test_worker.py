"""The queue between the receiver and the spool."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from penstock.capture.runs import MessageRun
from penstock.capture.spec import CaptureSpec
from penstock.capture.worker import QUEUED_BYTES, Worker
from penstock.model import Lsn
from penstock.model.errors import PenstockError
from penstock.postgres.types import TypeCatalog
from penstock.spool.writer import SpoolWriter
from tests.capture.pgoutput import message, xlog
from tests.capture.running import eventually
from tests.spool.rows import IDENTITY, START


def unreachable() -> None:
    raise AssertionError("a message has no types")


def report(state: str, error: PenstockError | None = None, **detail: object) -> None:
    pass


def run_of(place: int, size: int) -> MessageRun:
    lsn = START.value + place
    return MessageRun.of([xlog(lsn, message(lsn, "note", bytes(size), transactional=False))])


def test_bytes_bound_what_waits_to_be_written(tmp_path: Path) -> None:
    """A row may have hundreds of megabytes: two of them are too much already."""
    spec = CaptureSpec(source="test", conninfo="", slot="s", publication="p", spool=tmp_path, interval=0.02)
    with closing(SpoolWriter(tmp_path, IDENTITY, START)) as writer:
        worker = Worker(spec, writer, TypeCatalog(unreachable), report)  # type: ignore[arg-type]
        worker.put(run_of(10, 1000))
        assert worker.has_room
        worker.put(run_of(20, QUEUED_BYTES))
        assert not worker.has_room
        worker.start()
        eventually(lambda: worker.has_room)
        worker.put(run_of(30, 1000))
        worker.finish()
        assert worker.recorded >= Lsn(START.value + 30)

"""The writer of a spool: takes decoded rows, cuts segments at commits, keeps memory bounded.

Rows arrive in the order of the stream. Those of ended transactions are cut into a segment when there are
enough of them or they have waited long enough. A transaction that outgrows the limit before it ends is
written into segments that nobody sees yet; they are recorded together with its end.

What a crash leaves, after each step of a cut:
1. a segment written under a temporary name: nothing, it is removed at the next start;
2. renamed: a file no manifest names, removed at the next start; the slot sends its rows again;
3. recorded in the manifest: it is there, with the position that says so.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from penstock.model import Lsn, TableSchema, private
from penstock.model.errors import SpoolInUse
from penstock.spool import segment
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.spool.segment import Segment

SEGMENT_BYTES = 16 << 20


class SpoolWriter:
    """The one writer of a spool. Holding it open holds the spool's lock."""

    def __init__(
        self, path: Path, identity: Identity, start: Lsn, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        private.folder(path)
        private.tighten(path)
        self.path = path
        self._lock = _lock(path)
        try:
            self.manifest = Manifest.create(path, identity, start)
        except BaseException:
            os.close(self._lock)
            raise
        self._limit = segment_bytes
        self._ended: list[pa.RecordBatch] = []
        self._open: list[pa.RecordBatch] = []
        self._ended_bytes = 0
        self._open_bytes = 0
        self._unseen: list[Segment] = []
        self._schemas: list[TableSchema] = []
        self._reached = self.recorded = self.manifest.position
        self._number = self._remove_leftovers()

    def close(self) -> None:
        """Let go of the spool. What was not recorded is forgotten: the slot will send it again."""
        self.manifest.close()
        os.close(self._lock)

    @property
    def dirty(self) -> bool:
        """Whether a cut would record anything: rows, or only that the position moved on."""
        return self._reached > self.recorded

    @property
    def waiting(self) -> bool:
        """Whether rows of ended transactions wait to be cut."""
        return self.dirty and bool(self._ended or self._unseen)

    def learn(self, schema: TableSchema) -> None:
        """Take in a schema that the rows to come refer to."""
        self._schemas.append(schema)

    def record_schemas(self) -> None:
        """Record what was learnt at once, before any row refers to it."""
        self.manifest.record(self.recorded, [], self._schemas)
        self._schemas = []

    def append(self, rows: pa.RecordBatch, ended: int, position: Lsn | None) -> None:
        """Take in rows in stream order. The first `ended`, and all given before, belong to transactions
        that ended, the last of them at `position`; the others to one that goes on."""
        if position is not None:
            self._ended += self._open
            self._ended_bytes += self._open_bytes
            self._open, self._open_bytes = [], 0
            self._keep(rows.slice(0, ended), self._ended)
            rows = rows.slice(ended)
            self._reached = max(self._reached, position)
        self._keep(rows, self._open)

    def relieve(self) -> None:
        """Write out what has become too much for memory. Safe to call again after it failed."""
        if self._ended_bytes >= self._limit:
            self.cut()
        if self._open_bytes >= self._limit:
            self._set_aside()

    def _keep(self, rows: pa.RecordBatch, where: list[pa.RecordBatch]) -> None:
        if rows.num_rows == 0:
            return
        where.append(rows)
        if where is self._ended:
            self._ended_bytes += rows.nbytes
        else:
            self._open_bytes += rows.nbytes

    def cut(self) -> None:
        """Make everything that ended durable and visible. Safe to call again after it failed."""
        if not self.dirty:
            return
        self._write_out(self._ended)
        self._ended_bytes = 0
        self._sync_folder()
        self.manifest.record(self._reached, self._unseen, self._schemas)
        self._unseen, self._schemas = [], []
        self.recorded = self._reached

    def _set_aside(self) -> None:
        """Write the rows of the open transaction out, to be recorded when it ends.

        What ended before it is recorded first: the segments of a transaction are recorded with its end.
        """
        self.cut()
        self._write_out(self._open)
        self._open_bytes = 0

    def _write_out(self, batches: list[pa.RecordBatch]) -> None:
        """Write these to segments that are not recorded yet, and let go of them. Rows are brought together
        in a segment, which copies them; so a batch with a very large row has one to itself."""
        while batches:
            together = next(
                (place for place, batch in enumerate(batches) if batch.nbytes >= self._limit), len(batches)
            )
            self._unseen.append(self._write(batches[: together or 1]))
            del batches[: together or 1]
            if not together:
                pa.default_memory_pool().release_unused()  # what it was compressed to, as large again

    def _write(self, batches: list[pa.RecordBatch]) -> Segment:
        written = segment.write(self.path / f"{self._number:012d}.arrow", batches)
        self._number += 1
        return written

    def retire(self, before: Lsn) -> int:
        """Remove segments that every consumer is past: first from the manifest, then from the disk."""
        gone = self.manifest.retire(before)
        for file in gone:
            (self.path / file).unlink(missing_ok=True)
        return len(gone)

    def _remove_leftovers(self) -> int:
        """Remove what a crash left behind, and return the number of the next segment."""
        recorded = self.manifest.files()
        for path in _segment_files(self.path):
            if path.name not in recorded:
                path.unlink()
        return 1 + self.manifest.last_segment

    def _sync_folder(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _segment_files(path: Path) -> Iterable[Path]:
    return [*path.glob("*.arrow"), *path.glob("*.tmp")]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a spool that cannot be written now."""
    lock = _lock(path)
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    lock = private.opener(str(path / "lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise SpoolInUse(f"process {holder or 'unknown'} captures into this spool", file=path) from None
    with suppress(OSError):  # of a full disk; in place, so that there is room where there was a number
        os.pwrite(lock, str(os.getpid()).encode().ljust(32), 0)
    return lock


def captured_by(path: Path) -> int | None:
    """Return the process that captures into this spool now, if one does."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(lock, 32, 0) or 0)
    finally:
        os.close(lock)
    return None


def is_captured(path: Path) -> bool:
    return captured_by(path) is not None

"""The second half of a capture: decodes runs and writes them to the spool, in a thread of its own.

Decoding and compressing happen outside Python's lock, so the receiver goes on reading meanwhile. Runs wait
in a queue that is short, in bytes as well; when it is full the receiver stops reading and the server waits.
That is also how a full disk is survived: the worker tries the same write again until there is room, the queue
fills, feedback goes on, and nothing is lost. Segments that every consumer has passed are removed meanwhile:
that may be the room.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from penstock.capture.decoder import FastDecoder
from penstock.capture.runs import Block, DecodedRows, MessageRun, Step, StreamAbort, StreamCommit
from penstock.capture.schemas import SpoolSchemas
from penstock.capture.spec import CaptureSpec
from penstock.capture.spill import Spill
from penstock.capture.state import Report
from penstock.model import ZERO
from penstock.model.errors import SpoolFull
from penstock.postgres.types import TypeCatalog
from penstock.spool import room
from penstock.spool.writer import SpoolWriter

QUEUED_RUNS = 6
QUEUED_BYTES = 12 << 20
"""Of runs that wait or are being written. A row can have hundreds of megabytes, and is a run by itself then:
the next one is not received before it is written, nor while it is read back."""
HOUSEKEEPING = 1.0
"""Seconds between two looks at the consumers' positions; also between two records of an idle position."""
ROOM_PAUSE = 1.0


class Worker(threading.Thread):
    def __init__(self, spec: CaptureSpec, writer: SpoolWriter, types: TypeCatalog, report: Report) -> None:
        super().__init__(name=f"spool-{spec.source}", daemon=True)
        self._spec = spec
        self._writer = writer
        self._report = report
        self._types = types
        self._decoder = FastDecoder(SpoolSchemas(writer, types), writer.recorded)
        self._spill = Spill(spec.spool / "spill")
        self._queue: queue.Queue[MessageRun] = queue.Queue(QUEUED_RUNS)
        self._unwritten = 0
        """Bytes in the queue and at hand."""
        self._counting = threading.Lock()
        self._ending = threading.Event()
        self._last_cut = self._last_look = time.monotonic()
        self.recorded = writer.recorded
        """The spool has durably everything before this position."""
        self.acknowledged = ZERO
        """The server may forget what lies before this position; zero while nobody has said so."""
        self.error: BaseException | None = None
        self._without_room_since: float | None = None

    @property
    def has_room(self) -> bool:
        return not self._queue.full() and self._unwritten < QUEUED_BYTES

    def lacks_room(self, seconds: float) -> bool:
        """Whether the disk has been full for so long."""
        since = self._without_room_since
        return since is not None and time.monotonic() - since >= seconds

    def put(self, run: MessageRun) -> None:
        self._count(len(run.data))
        self._queue.put(run)

    def _count(self, size: int) -> None:
        with self._counting:
            self._unwritten += size

    def finish(self) -> None:
        """Write what has been put, then end. Raises what went wrong, if anything did."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            self._look_at_consumers()
            while not (self._ending.is_set() and self._queue.empty()):
                with suppress(queue.Empty):
                    size = self._take_in(self._queue.get(timeout=self._spec.interval / 2))
                    self._patiently(self._writer.relieve)
                    self._count(-size)
                self._keep_up(time.monotonic())
            self._cut()
            self._look_at_consumers()
        except BaseException as error:
            self.error = error

    def _take_in(self, run: MessageRun) -> int:
        """Take a run in; return its size in bytes. Nobody keeps the run, so that it is not in memory beside
        its rows and what they are compressed to."""
        for step in self._decoder.decode(run):
            self._carry_out(step)
        return len(run.data)

    def _carry_out(self, step: Step) -> None:
        match step:
            case DecodedRows(batch, ended, position):
                self._writer.append(batch, ended, position)
            case Block():
                self._patiently(lambda: self._spill.keep(step))
            case StreamAbort(xid, subxid):
                self._spill.roll_back(xid, subxid)
            case StreamCommit(xid):
                for rows in self._decoder.replay(step, self._read_back(xid)):
                    self._carry_out(rows)
                    del rows  # the writer has them, until they are written
                    self._patiently(self._writer.relieve)
                self._spill.forget(xid)

    def _read_back(self, xid: int) -> Iterator[MessageRun]:
        """Runs of a transaction that has committed; each counts until the next one is asked for. It is not
        held here meanwhile."""
        for spilled in self._spill.runs(xid):
            self._count(spilled.size)
            yield spilled.read()
            self._count(-spilled.size)

    def _keep_up(self, now: float) -> None:
        pause = self._spec.interval if self._writer.waiting else HOUSEKEEPING
        if self._writer.dirty and now - self._last_cut >= pause:
            self._cut()
        if now - self._last_look >= HOUSEKEEPING:
            self._look_at_consumers()

    def _cut(self) -> None:
        self._patiently(self._writer.cut)
        self._last_cut = time.monotonic()
        self.recorded = self._writer.recorded

    def _look_at_consumers(self) -> None:
        """Acknowledge and remove what every consumer is past.

        The order matters: a position is acknowledged only when it is recorded, and a consumer can only
        be past what was recorded.
        """
        self._last_look = time.monotonic()
        self._types.close()  # new tables are rare: until the next one its connection might go silent
        positions = self._writer.manifest.consumers().values()
        slowest = min(positions, default=ZERO)
        if slowest:
            with suppress(SpoolFull), room.explained(self._spec.spool):  # it is tried again the next time
                self._writer.retire(slowest)
        passed = self.recorded if self._spec.ack == "spool" else min(slowest, self.recorded)
        self.acknowledged = max(self.acknowledged, passed)  # a consumer may have gone back

    def _patiently(self, write: Callable[[], object]) -> None:
        """Try a write until the disk has room for it."""
        while True:
            try:
                with room.explained(self._spec.spool):
                    write()
                break
            except SpoolFull as full:
                if self._without_room_since is None:
                    self._without_room_since = time.monotonic()
                    self._report("paused", full)
                self._wait_for_room(full)
        if self._without_room_since is not None:
            self._without_room_since = None
            with suppress(SpoolFull):
                room.reserve(self._spec.spool)
            self._report("streaming")

    def _wait_for_room(self, full: SpoolFull) -> None:
        room.release(self._spec.spool)
        while True:
            if self._ending.wait(ROOM_PAUSE):
                raise full
            self._look_at_consumers()
            if room.is_there(self._spec.spool):
                return

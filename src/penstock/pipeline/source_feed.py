"""One source as the pipeline sees it: its capture kept running, its tables found, its clock read.

`look_after` is called every moment from the pipeline's own thread and sees to what is due. Whatever asks the
source's server may take long, so it has a thread of its own; and it may fail while that is down: capture
waits for it, and so does the rest.

A slot that has lost changes ends the pipeline, or, with `on_slot_lost: resync`, begins anew: `lost` says so,
the pipeline lets go of everything that reads the spool and marks the tables to be copied, then calls
`start_over`. What a crash leaves, after each step:
1. the tables are marked in the store: the slot is as lost as before, and the next start does all this again;
2. the slot is dropped: without slot, but with a spool, it is still lost: the same;
3. the spool is moved away, as a whole: the next start makes a new slot and a new spool, as the very first
   did, and copies the marked tables; what was moved away is removed when the same happens again;
4. the new slot is there, without spool, or with it: an ordinary start.
The destinations keep what they have until the new copies are handed over.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from typing import TypeVar

import psycopg
import structlog

from penstock.capture import launch
from penstock.capture.launch import CaptureProcess
from penstock.capture.spool_identity import own, refuse_if_captured
from penstock.config import Config, SourceConfig
from penstock.model import Lsn, TableId
from penstock.model.backoff import Backoff
from penstock.model.errors import ConnectionFailed, PenstockError, SlotLost, SpoolFull, TableBusy
from penstock.pipeline import retained_wal, table_facts
from penstock.pipeline.capture_trouble import CaptureTrouble
from penstock.pipeline.catalog_look import Look, PublishedTables
from penstock.pipeline.clock_readings import ClockReadings
from penstock.pipeline.retained_wal import RetainedWal
from penstock.postgres import catalog, ddl, slot
from penstock.postgres.connection import Connection, connect, explain, wait_briefly
from penstock.spool import consumers
from penstock.spool.identity import spool_exists
from penstock.spool.manifest import Manifest

Answer = TypeVar("Answer")

DISCOVERY = 2.0
"""Seconds between two looks at the publication."""
CLOCK = 1.0
LONG = 10.0
"""Seconds after which it is said what a start waits for."""
_ENDS_BEFORE = """
select case when pg_is_in_recovery() then false else pg_current_wal_flush_lsn() < %s::pg_lsn end
"""
UNRECORDED = "schema changes are not recorded: they show with a table's next change"
OLD = "Have a superuser run what `penstock grant` prints: it puts this version's in their place"


class SourceFeed:
    def __init__(self, config: Config, source: SourceConfig) -> None:
        self.name = source.name
        self.source = source
        self.spec = launch.spec_of(config, source)
        self.fresh: dict[TableId, frozenset[str]] = {}
        """Tables that were published before the slot began, with their membership: as long as they have it,
        the stream has all that is not in a snapshot. Of one that was published later, or once more, a
        transaction that was running may have written rows unseen."""
        self.lost: SlotLost | None = None
        """Why the slot is to be made anew, while that is not done."""
        self.error: PenstockError | None = None
        self.marker = config.marker_for(source)
        """How markers of reloads begin, if schema changes are to be recorded at all."""
        self.recording = False
        """Whether the source records schema changes, as far as this start knows."""
        self._record_at = 0.0
        self._let_go = False
        self._capture: CaptureProcess | None = None
        self._backoff = Backoff(config.retry.initial, config.retry.max)
        self._again_at = 0.0
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._look = Look(source, self._tell)
        self._published: PublishedTables | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"look-{source.name}")
        self._asking: Future[None] | None = None
        self._reported: list[str] = []
        self._looked = self._read_clock = self._read_slot = 0.0
        self._wal = RetainedWal(self.name)
        self._trouble = CaptureTrouble(self.name, self.spec.spool)
        self._clock = ClockReadings()
        self._log = structlog.get_logger("penstock.pipeline").bind(source=self.name)

    def start(self, stop: threading.Event) -> None:
        """Bring the publication in step, look at the tables, start the capture; or find that the slot is
        lost.

        To make a slot takes until the transactions that run now have ended: `stop` ends the waiting.
        """
        own(self.spec)
        if self.source.ddl_capture == "on":
            self._install(rehearsal=True)  # before a slot is made in vain
        self._tell(launch.prepare(self.source))
        self._begin()
        begun = time.monotonic()
        try:
            while not self._has_begun() and not stop.wait(0.02):
                if time.monotonic() - begun > LONG:
                    begun = float("inf")
                    self._log.info("waiting for the slot: transactions that were running must end first")
        except PenstockError as error:
            self._end_capture()
            if not self._is_to_be_replaced(error):
                raise
        self._forget_removed()

    def _forget_removed(self) -> None:
        """Forget destinations that are not in the configuration any more: for them the spool, and the slot,
        would keep everything for ever. One that comes back under its name misses nothing: `stream_start`."""
        if not self.readable:
            return
        try:
            with closing(self.open()) as opened:
                gone = consumers.configure(opened, self.spec.consumers)
        except SpoolFull:  # the next start forgets them
            return
        for name in gone:
            self._log.warning("consumer forgotten: it is no destination of the configuration", consumer=name)

    def record_ddl(self) -> None:
        """Have the source record schema changes, where that is wanted and may be. Called when all the rest of
        a start has succeeded, destinations and all: one that fails leaves no trigger behind."""
        if self.recording or self.marker is None or self.lost or time.monotonic() < self._record_at:
            return
        try:
            installed = self._install()
            if installed:
                self.discover()
            self.recording = installed
        except PenstockError as error:
            if error.retry:
                self._record_at = time.monotonic() + DISCOVERY
                self._log.info("schema changes are not recorded yet, trying again", error=str(error))
                return
            if self.source.ddl_capture == "on":
                raise
            self._log.warning(UNRECORDED, error=str(error))
        if not self.recording:
            self.marker = None

    def _install(self, *, rehearsal: bool = False) -> bool:
        """Install the triggers; return whether they are there. A rehearsal only finds out whether they could
        be."""
        if self.marker is None:
            return False
        try:
            with connect(self.spec.conninfo) as connection:
                wait_briefly(connection)
                if ddl.install(connection, self.marker, rehearsal=rehearsal):
                    return True
                if ddl.is_installed(connection):
                    self._log.warning(
                        "the triggers that record schema changes are of another version", remedy=OLD
                    )
                    return True
        except psycopg.Error as error:
            raise explain(error) from None
        if self.source.ddl_capture == "on":
            raise ddl.denied()
        self._log.info(UNRECORDED, reason="the role may not create triggers")
        return False

    def _begin(self) -> None:
        """Look at the tables, then start the capture, which makes a slot where there is none."""
        published = self.discover()
        with self._lock:
            existing = self._asked(lambda: slot.describe(self._connected(), self.spec.slot))
        self.fresh = {} if existing else {id: table.member for id, table in published.tables.items()}
        self._capture = CaptureProcess(self.spec)

    def _has_begun(self) -> bool:
        return self._capture is not None and self._capture.has_begun()

    def stop(self) -> None:
        self._end_capture()
        self._worker.shutdown()
        if self._connection is not None:
            self._connection.close()

    def open(self) -> Manifest:
        return Manifest.open(self.spec.spool)

    @property
    def readable(self) -> bool:
        """Whether there is a spool for streams to read."""
        return self.lost is None and spool_exists(self.spec.spool)

    @property
    def published(self) -> PublishedTables:
        assert self._published is not None
        return self._published

    @property
    def history(self) -> TableId | None:
        """Return the table in which schema changes come, if they do and are wanted."""
        return self._published.history if self._published is not None and self.marker is not None else None

    # Now and then

    def look_after(self) -> None:
        """Do what is due. Raises what cannot be waited for."""
        try:
            now = time.monotonic()
            self._trouble.look(self._capture.pid if self._capture else None, now)
            self._keep_capturing(now)
            due = now - self._read_clock >= CLOCK or now - self._looked >= DISCOVERY
            if due and (self._asking is None or self._asking.done()):
                asked, self._asking = self._asking, self._worker.submit(self._ask)
                if asked is not None:
                    asked.result()
        except PenstockError as error:
            if not error.retry:
                raise
            self.error = error.at(source=self.name)

    def _ask(self) -> None:
        """Ask the server what is due. It may take its time: in a thread of its own."""
        now = time.monotonic()
        if now - self._read_clock >= CLOCK:
            self._read_clock = now
            self._note_time()
        if now - self._looked >= DISCOVERY:
            self.discover()
        if now - self._read_slot >= retained_wal.LOOK:
            self._read_slot = now
            with self._lock:
                self._wal.note(self._asked(lambda: slot.describe(self._connected(), self.spec.slot)))

    def _keep_capturing(self, now: float) -> None:
        if self._capture is not None:
            self._attempt(self._capture.check)
        elif now >= self._again_at and self.lost is None:
            self._capture = CaptureProcess(self.spec)
        elif now >= self._again_at and self._let_go:
            self._attempt(self._replace)

    def _attempt(self, work: Callable[[], object]) -> None:
        """Retry what ended a capture, or kept it from beginning, where that can help."""
        try:
            work()
        except PenstockError as error:
            self._end_capture()
            if self._is_to_be_replaced(error):
                return
            if not error.retry and type(error) is not PenstockError:
                raise error.at(source=self.name) from None
            pause = self._backoff.pause()
            self._log.warning("capture ended", error=str(error), again_in=round(pause, 1))
            self._again_at = time.monotonic() + pause

    def _is_to_be_replaced(self, error: PenstockError) -> bool:
        """Whether the error is that the slot is lost, and it may be made anew; that is noted."""
        resync = self.source.replication.on_slot_lost == "resync"
        if not isinstance(error, SlotLost) or not resync or self.lost is not None:
            return False
        self.lost = error
        self._log.warning("slot lost", error=str(error.at(source=self.name)))
        return True

    def _end_capture(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    def discover(self) -> PublishedTables:
        """Look at the published tables now; where the publication is ours, bring it in step first."""
        with self._lock:
            self._looked = time.monotonic()
            self._published = self._asked(lambda: self._look.take(self._connected()))
            self.error = None
            return self._published

    def _tell(self, done: list[str]) -> None:
        """Log what was done to the publication; what holds on from one look to the next is logged once."""
        for sentence in done:
            if sentence not in self._reported:
                self._log.info(sentence)
        self._reported = done

    # A lost slot

    def start_over(self) -> None:
        """Begin anew, when nobody reads the spool any more and the tables are marked to be copied."""
        if not self._let_go:
            self._let_go, self._again_at = True, 0.0

    def _replace(self) -> None:
        """Replace a lost slot and its spool by new ones. Of another's spool nothing is concluded, and nothing
        is done to it: then neither the slot that is lost nor the spool is ours."""
        own(self.spec)
        self._drop_slot()
        self._remove_spool()
        self._tell(launch.prepare(self.source))
        self._begin()
        self.lost, self._let_go = None, False
        self._backoff.reset()
        self._log.info("capture starts over with a new slot", slot=self.spec.slot)

    def _drop_slot(self) -> None:
        """Drop the slot, but never one that is not ours: for another plugin, of another database."""
        assert self.lost is not None
        with self._lock:
            existing = self._asked(lambda: slot.describe(self._connected(), self.spec.slot))
            if existing is not None and (existing.plugin != slot.PLUGIN or not existing.here):
                raise self.lost
            if existing is not None:
                self._asked(lambda: slot.drop(self._connected(), self.spec.slot))

    def _remove_spool(self) -> None:
        spool = self.spec.spool
        refuse_if_captured(spool)
        aside = spool.with_name(f".{spool.name}.lost")  # no source is called that: names begin with a letter
        shutil.rmtree(aside, ignore_errors=True)
        if spool.exists():
            spool.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    # What the time is

    def _note_time(self) -> None:
        with self._lock:
            row = self._asked(lambda: self._connected().execute("select clock_timestamp()").fetchone())
            assert row is not None
            lsn = self._asked(lambda: table_facts.wal_position(self._connected()))
        self._clock.note(row[0], lsn)

    def complete_through(self, position: Lsn) -> datetime | None:
        """Return the time up to which all that committed is before this position, as far as is known."""
        return self._clock.complete_through(position)

    def is_behind(self, position: Lsn) -> bool:
        """Whether the server's WAL ends before this position: it was there once, and went back. A standby may
        still come there."""
        with self._lock:
            row = self._asked(lambda: self._connected().execute(_ENDS_BEFORE, (str(position),)).fetchone())
        assert row is not None
        return bool(row[0])

    # The connection

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.spec.conninfo)
            wait_briefly(self._connection)  # sizes want a lock
        return self._connection

    def _asked(self, question: Callable[[], Answer], attempts: int = 3) -> Answer:
        """Return the answer, or raise what a failed statement means; the next one gets a new connection."""
        try:
            return question()
        except psycopg.Error as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            failure = explain(error)
            if catalog.is_passing(error):  # it may be about any table
                if attempts > 1 and not isinstance(failure, TableBusy):
                    return self._asked(question, attempts - 1)
                failure = ConnectionFailed(failure.reason, remedy=failure.remedy)
            raise failure.at(source=self.name) from None

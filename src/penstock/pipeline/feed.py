"""One source as the pipeline sees it: its capture kept running, its tables found, its clock read.

`look_after` is called every moment from the pipeline's own thread and does what is due. Whatever needs the
source's server may fail while that is down; capture waits for it, and so does the rest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
import structlog

from penstock.capture import launch
from penstock.capture.launch import CaptureProcess
from penstock.capture.process import Backoff
from penstock.config import Config, SourceConfig
from penstock.model import Lsn, TableId
from penstock.model.errors import ConnectionFailed, PenstockError, TableBusy
from penstock.pipeline import facts
from penstock.pipeline.facts import Facts
from penstock.postgres.connection import Connection, connect, explain
from penstock.spool import manifest
from penstock.spool.manifest import Manifest

DISCOVERY = 2.0
"""Seconds between two looks at the publication."""
CLOCK = 1.0
MARGIN = timedelta(seconds=1)
"""A commit's time is taken a moment before its record is in the WAL; this is longer than that moment."""
REMEMBERED = 3600
"""Readings of the clock that are kept: how far behind a destination may be to be told its time."""


@dataclass(frozen=True, slots=True)
class Found:
    """The published tables, as of one moment."""

    tables: dict[TableId, Facts]
    lsn: Lsn


class Feed:
    def __init__(self, config: Config, source: SourceConfig) -> None:
        self.name = source.name
        self.source = source
        self.spec = launch.spec_of(config, source)
        self.fresh = not manifest.exists(self.spec.spool)
        """Whether the spool begins with this run: then everything since the slot began is in it."""
        self.error: PenstockError | None = None
        self._capture: CaptureProcess | None = None
        self._backoff = Backoff(config.retry.initial, config.retry.max)
        self._again_at = 0.0
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._looked = self._read_clock = 0.0
        self._clock: deque[tuple[Lsn, datetime]] = deque(maxlen=REMEMBERED)
        self._log = structlog.get_logger("penstock.pipeline").bind(source=self.name)

    def start(self) -> None:
        """The publication in step, the capture running, the tables known."""
        for done in launch.prepare(self.source):
            self._log.info(done)
        self._capture = CaptureProcess(self.spec)
        self._capture.wait_until_captured()
        self.discover()

    def stop(self) -> None:
        if self._capture is not None:
            self._capture.close()
        if self._connection is not None:
            self._connection.close()

    def open(self) -> Manifest:
        return Manifest.open(self.spec.spool)

    @property
    def found(self) -> Found:
        assert self._found is not None
        return self._found

    # Now and then

    def look_after(self) -> bool:
        """Do what is due; says whether the tables were looked at anew. Raises what cannot be waited for."""
        now = time.monotonic()
        self._keep_capturing(now)
        try:
            if now - self._read_clock >= CLOCK:
                self._read_clock = now
                self._note_time()
            if now - self._looked >= DISCOVERY:
                self.discover()
                return True
        except PenstockError as error:
            if not error.retry:
                raise
            self.error = error.at(source=self.name)
        return False

    def _keep_capturing(self, now: float) -> None:
        if self._capture is None:
            if now >= self._again_at:
                self._capture = CaptureProcess(self.spec)
            return
        try:
            self._capture.check()
        except PenstockError as error:
            if not error.retry and type(error) is not PenstockError:
                raise error.at(source=self.name) from None
            pause = self._backoff.pause()
            self._log.warning("capture ended", error=str(error), again_in=round(pause, 1))
            self._capture.close()
            self._capture, self._again_at = None, now + pause

    def discover(self) -> Found:
        """Look at the published tables now; where the publication is ours, bring it in step first."""
        with self._lock:
            self._looked = time.monotonic()
            connection = self._connected()
            try:
                for done in launch.adjust(connection, self.source):
                    self._log.info(done)
                known = self._found.tables if self._found else {}
                tables = facts.gather(connection, self.source.publication_name, unsized=known)
                lsn = facts.wal_position(connection)
            except psycopg.Error as error:
                raise self._lost(error) from None
            self._found, self.error = Found(tables, lsn), None
            return self._found

    # What the time is

    def _note_time(self) -> None:
        with self._lock:
            try:
                row = self._connected().execute("select clock_timestamp()").fetchone()
                assert row is not None
                lsn = facts.wal_position(self._connected())
            except psycopg.Error as error:
                raise self._lost(error) from None
        self._clock.append((lsn, row[0] - MARGIN))

    def complete_through(self, position: Lsn) -> datetime | None:
        """The time up to which everything that committed stands before this position, as far as is known."""
        return next((at for lsn, at in reversed(self._clock) if lsn <= position), None)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.spec.conninfo)
            self._connection.execute("set lock_timeout = '2s'")  # sizes want a lock; nobody waits for us
        return self._connection

    def _lost(self, error: psycopg.Error) -> PenstockError:
        """What a failed statement means; the next one gets a connection of its own."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        told = explain(error)
        if isinstance(told, TableBusy):  # of some table, which need not be the one at hand
            told = ConnectionFailed(told.reason, remedy=told.remedy)
        return told.at(source=self.name)

"""Snapshots that the consumers of a destination ask for: made under the rules of their table, while the
stream goes on. Nothing of the table's state changes.

A snapshot is as a copy is (`copier.py`), and besides says what it contains, so that whoever has it can tell
which changes are in it. It is made once the spool has come to where it was taken: if the source fails over to
a server that has not all of it, the slot is lost then, and consumers are told to begin anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import psycopg
import structlog
from pyspark.sql import SparkSession

from penstock.capture.heartbeat import mark
from penstock.config import Config
from penstock.destinations.protocol import Snapshots, TableCopy, WantedSnapshot
from penstock.model.errors import PenstockError
from penstock.model.text import error_summary
from penstock.pipeline import table_facts
from penstock.pipeline.stream import Stream
from penstock.pipeline.watched_snapshot import WatchedSnapshot
from penstock.postgres.connection import connect, explain
from penstock.postgres.exported_snapshot import settle
from penstock.postgres.snapshot import Snapshot
from penstock.state.store import TableState

POOL = "spark.scheduler.pool"
MOST_WORKERS = 100
AT_A_LOOK = 20
"""Requests that are answered in one round of the pipeline, which has other things to do."""
CAPTURE = 60.0
"""Seconds within which the spool has to come to where a snapshot was taken."""


class SnapshotMaker:
    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._settings = config.initial_copy
        self._spark = spark
        self._pool = ThreadPoolExecutor(MOST_WORKERS, thread_name_prefix="snapshot")
        self._waiting: list[tuple[Snapshots, WantedSnapshot, Stream, TableState]] = []
        self._running: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._log = structlog.get_logger("penstock.pipeline")

    def look(self, streams: Iterable[Stream]) -> None:
        """Begin what was asked for, as far as a destination makes that many at once."""
        by_target: dict[int, list[Stream]] = {}
        for stream in streams:
            if stream.target.snapshots is not None:
                by_target.setdefault(id(stream.target), []).append(stream)
        for group in by_target.values():
            snapshots = group[0].target.snapshots
            assert snapshots is not None
            try:
                self._begin(snapshots, group)
            except PenstockError:  # it is away: whoever asked before asks again
                continue

    def _begin(self, snapshots: Snapshots, streams: list[Stream]) -> None:
        for request in snapshots.asked()[:AT_A_LOOK]:
            ours = [
                (stream, state)
                for stream in streams
                for state in stream.tables
                if snapshots.names(request, state.name)
            ]
            meant = [(stream, state) for stream, state in ours if state.phase.streams]
            if not meant:
                say = snapshots.refuse if ours else snapshots.pass_on
                say(request, "no table of this name is delivered here now")
                continue
            snapshots.take(request)
            self._waiting.append((snapshots, request, *meant[0]))
        for wanted in [wanted for wanted in self._waiting if wanted[0] is snapshots]:
            _, request, stream, _ = wanted
            if len(self._of(streams)) >= snapshots.at_once:
                return
            self._waiting.remove(wanted)
            with self._lock:
                self._running[request.id] = stream
            self._pool.submit(self._make, *wanted)

    def _of(self, streams: Collection[Stream]) -> list[str]:
        with self._lock:
            return [id for id, stream in self._running.items() if stream in streams]

    def give_up(self, streams: Collection[Stream]) -> None:
        """Cancel what streams are making that are stopping: whoever asked is told, if NATS is there, and asks
        again. What only waits is forgotten."""
        for wanted in [wanted for wanted in self._waiting if wanted[2] in streams]:
            snapshots, request, _, _ = wanted
            self._waiting.remove(wanted)
            snapshots.forget(request)
        while running := self._of(streams):
            for id in running:
                self._spark.sparkContext.cancelJobGroup(id)
            threading.Event().wait(0.1)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _make(self, snapshots: Snapshots, request: WantedSnapshot, stream: Stream, state: TableState) -> None:
        try:
            rows = self._made(snapshots, request, stream, state)
            self._log.info("snapshot made", table=str(state.name), snapshot=request.id, rows=rows)
        except Exception as error:
            reason = str(error) if isinstance(error, PenstockError) else error_summary(error)
            self._log.warning("snapshot failed", table=str(state.name), snapshot=request.id, error=reason)
            try:
                snapshots.refuse(request, f"the snapshot failed: {reason}"[:1000])
            except PenstockError:
                self._log.warning("nobody could be told that the snapshot failed", snapshot=request.id)
        finally:
            with self._lock:
                del self._running[request.id]

    def _made(self, snapshots: Snapshots, request: WantedSnapshot, stream: Stream, state: TableState) -> int:
        conninfo, table = stream.feed.spec.conninfo, state.key.table
        delivered = stream.reached()  # before the snapshot is taken, which then has all of it
        try:
            with connect(conninfo) as connection, ExitStack() as stack:
                settle(connection)
                mark(connection)  # waits for synchronous standbys, as what is delivered does to be visible
                snapshot = stack.enter_context(Snapshot.open(conninfo, table))
                cancel = partial(self._spark.sparkContext.cancelJobGroup, request.id)
                watched = stack.enter_context(WatchedSnapshot(snapshot, cancel))
                mark(connection)  # flushed: no crash takes back what the snapshot saw, nor its numbers
                facts = table_facts.gather(connection, stream.feed.source.publication_name, table)
                if facts is None:
                    raise PenstockError("the table is not published any more", table=state.name)
                if not snapshots.names(request, facts.schema.name):
                    raise PenstockError("the table is being renamed", remedy="Ask again, by its new name")
                _wait_for_capture(stream, snapshot)
                schema, detail = stream.changes.learnt(facts), facts.detail()
                stream.tables.keep_masked(state, schema.name, detail)
                ranges = snapshot.ranges(
                    schema.column_names,
                    facts.row_filter,
                    self._settings.partition_bytes,
                    self._settings.batch_rows,
                )
                self._spark.sparkContext.setJobGroup(request.id, f"snapshot of {state.name}")
                self._spark.sparkContext.setLocalProperty(POOL, "copy")
                delivery = stream.tables.delivery(schema, state, detail)
                copy = TableCopy(request.id, delivery, conninfo, snapshot.name, tuple(ranges), snapshot.lsn)
                copy = replace(copy, rows_read=watched.rows_read)
                copy = stream.transforms.copy(stream.tables.rules(schema.name), copy)
                return snapshots.make(request, copy, snapshot.visibility, min(delivered, snapshot.lsn))
        except psycopg.Error as error:
            raise explain(error) from None


def _wait_for_capture(stream: Stream, snapshot: Snapshot) -> None:
    until = time.monotonic() + CAPTURE
    while not stream.tables.is_captured(snapshot.lsn, snapshot.timeline):
        snapshot.alive()
        if time.monotonic() >= until or stream.stopping.wait(0.05):
            raise PenstockError(
                "capture has not come to where the snapshot was taken",
                remedy="Ask again; `penstock status` says what the capture waits for",
            )

"""The initial copy: tables one after the other, the smallest first, a few at once, while the stream goes on.

What a crash leaves, after each step of a copy:
1. the hold registered: the spool keeps the table's changes for nobody; the next start takes it up again;
2. `data_sync` stored, the copy begun at the destination: the next attempt replaces it;
3. `finished_copy` stored: the copy waits, set aside, and is handed over by the stream.
The snapshot is open, and with it a transaction at the source, only from 2 until all rows are read.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module

import psycopg
import structlog
from pyspark.sql import SparkSession

from penstock.capture.heartbeat import mark
from penstock.config import Config
from penstock.destinations.protocol import TableCopy
from penstock.model import Lsn
from penstock.model.backoff import Backoff
from penstock.model.errors import PenstockError, StateUnreachable
from penstock.model.phases import Phase
from penstock.model.text import error_summary
from penstock.pipeline import table_facts, unseen_changes
from penstock.pipeline.awaited_writers import AwaitedWriters
from penstock.pipeline.snapshot_maker import POOL, SnapshotMaker
from penstock.pipeline.stream import Stream
from penstock.pipeline.table_facts import Facts
from penstock.pipeline.table_states import KIND, TIMELINE
from penstock.pipeline.watched_snapshot import WatchedSnapshot
from penstock.postgres.connection import connect, explain
from penstock.postgres.exported_snapshot import settle
from penstock.postgres.snapshot import Snapshot
from penstock.state.store import TableKey, TableState

WARM_TASKS = 16


class Copier:
    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark
        self._pool = ThreadPoolExecutor(config.initial_copy.workers, thread_name_prefix="copy")
        self._running: dict[TableKey, Stream] = {}
        self._lock = threading.Lock()
        self._snapshots = SnapshotMaker(config, spark)
        self._awaited = {source.name: AwaitedWriters(source) for source in config.sources}
        self._log = structlog.get_logger("penstock.pipeline")

    def warm_up(self) -> None:
        """Have everything ready when the first copy begins, here and at Spark's workers: they start while the
        streams do. (A function of ours would have them import the pipeline: 1.5 s each.)"""
        self._pool.submit(import_module, "penstock.postgres.libpq")
        spark = self._spark.sparkContext
        tasks = min(spark.defaultParallelism, WARM_TASKS)
        self._pool.submit(lambda: spark.parallelize(range(tasks), tasks).map(abs).count())

    def look(self, streams: Iterable[Stream]) -> None:
        """Begin what is to be copied, the smallest first, as far as there are workers; and what consumers ask
        for."""
        streams = list(streams)
        self._snapshots.look(streams)
        due = [(stream, state) for stream in streams for state in stream.tables if state.phase is Phase.INIT]
        keys = {state.key for _, state in due}
        for awaited in self._awaited.values():
            awaited.forget_but(keys)
            awaited.look()
        waiting = [
            (state.total_bytes, stream, state)
            for stream, state in due
            if state.key not in self._running and state.key not in self._awaited[state.key.source]
        ]
        for _, stream, state in sorted(waiting, key=lambda entry: entry[0]):
            with self._lock:
                if len(self._running) >= self._config.initial_copy.workers:
                    return
                self._running[state.key] = stream
            self._pool.submit(self._copy, stream, state)

    def progress(self, state: TableState) -> int:
        """Return about how many bytes of a running copy are done: tasks are of one size."""
        tracker = self._spark.sparkContext.statusTracker()
        done = total = 0
        for job in tracker.getJobIdsForGroup(_group(state.key)):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info is not None:
                    done, total = done + stage_info.numCompletedTasks, total + stage_info.numTasks
        return state.total_bytes * done // total if total else 0

    def give_up(self, streams: Collection[Stream]) -> None:
        """Cancel unfinished copies of streams that are stopping: they are made anew at the next
        start. Cancelled until they have ended: a job that only begins now would not notice."""
        self._snapshots.give_up(streams)
        while running := self._of(streams):
            for key in running:
                self._spark.sparkContext.cancelJobGroup(_group(key))
            time.sleep(0.1)

    def _of(self, streams: Collection[Stream]) -> list[TableKey]:
        with self._lock:
            return [key for key, stream in self._running.items() if stream in streams]

    def close(self) -> None:
        """End the workers, when all copies were given up."""
        self._pool.shutdown(wait=True)
        self._snapshots.close()
        for awaited in self._awaited.values():
            awaited.close()

    def _copy(self, stream: Stream, state: TableState) -> None:
        try:
            self._attempt(stream, state)
        except PenstockError as error:
            self._fail(stream, state, error)
        except Exception as error:
            if not stream.stopping.is_set():
                self._log.exception("copy failed", table=str(state.name))
            self._fail(stream, state, PenstockError(f"the copy failed: {error_summary(error)}"[:1000]))
        finally:
            with self._lock:
                del self._running[state.key]

    def _fail(self, stream: Stream, state: TableState, error: PenstockError) -> None:
        """Put down that the copy failed: until then the table would count as being copied."""
        backoff = Backoff(self._config.retry.initial, self._config.retry.max)
        while not stream.stopping.is_set():
            try:
                stream.fail(state, error, None)
                break
            except StateUnreachable as away:
                self._log.warning("waiting for the state store", error=str(away))
                stream.stopping.wait(backoff.pause())

    def _attempt(self, stream: Stream, state: TableState) -> None:
        conninfo, table = stream.feed.spec.conninfo, state.key.table
        try:
            with connect(conninfo) as connection:
                settle(connection)
                position = stream.tables.hold(table)
                before = table_facts.gather(connection, stream.feed.source.publication_name, table)
                if before is None:
                    return
                awaited = self._awaited[state.key.source]
                if before.member.isdisjoint(_fresh(state)) and not awaited.have_ended(
                    connection, state.key, before.member, position, stream.tables.wait
                ):
                    return  # it comes again; others go first
                cancel = partial(self._spark.sparkContext.cancelJobGroup, _group(state.key))
                with Snapshot.open(conninfo, table) as snapshot, WatchedSnapshot(snapshot, cancel) as watched:
                    mark(connection)  # flushed: no crash takes back what the snapshot saw, nor its numbers
                    facts = table_facts.gather(connection, stream.feed.source.publication_name, table)
                    if facts is not None and unseen_changes.unseen(before.detail(), facts) is None:
                        self._make(stream, _begun(state, snapshot, position), facts, watched)
        except psycopg.Error as error:
            raise explain(error) from None

    def _make(self, stream: Stream, state: TableState, facts: Facts, watched: WatchedSnapshot) -> None:
        snapshot = watched.snapshot
        stream.tables.keep_masked(state, facts.schema.name, facts.detail())
        schema = stream.changes.learnt(facts)
        takes_copies = stream.target.traits.takes_copies
        target, kind = stream.tables.placed(schema.name)
        state = replace(
            state,
            snapshot=None if stream.streaming_only else state.snapshot,  # an empty copy has no change in it
            name=schema.name,
            target=target,
            version=schema.version,
            total_bytes=facts.bytes,
            detail=facts.detail() | {KIND: kind, TIMELINE: snapshot.timeline},
        )
        stream.tables.put(state, "copying")
        stream.places.refuse_if_shared(state.target, state.key.table)
        settings = self._config.initial_copy
        ranges = (
            []
            if stream.streaming_only or not takes_copies
            else snapshot.ranges(
                schema.column_names, facts.row_filter, settings.partition_bytes, settings.batch_rows
            )
        )
        self._spark.sparkContext.setJobGroup(_group(state.key), f"copy of {state.name}")
        self._spark.sparkContext.setLocalProperty(POOL, "copy")
        assert state.copy is not None
        delivery = stream.tables.delivery(schema, state, state.detail)
        copy = TableCopy(
            state.copy,
            delivery,
            stream.feed.spec.conninfo,
            snapshot.name,
            tuple(ranges),
            snapshot.lsn,
            rows_read=watched.rows_read,
        )
        if takes_copies:
            copy = stream.transforms.copy(stream.tables.rules(schema.name), copy)
        rows = self._nothing(stream, copy) if stream.streaming_only else stream.target.copy_table(copy)
        watched.rows_read()  # a destination of somebody else's may not have called it
        if stream.tables.get(state.key.table) is not None:
            finished = replace(state, phase=Phase.FINISHED_COPY, rows=rows, copied_bytes=state.total_bytes)
            stream.tables.put(finished, f"copied {rows} rows")

    def _nothing(self, stream: Stream, copy: TableCopy) -> int:
        """Copy nothing, for `streaming_only`: what the destination has stays. It is told that there are no
        rows, not even of a transform. A destination that only knows full copies is told nothing."""
        if not stream.target.traits.keeps_tables:
            return 0
        return stream.target.copy_table(replace(copy, rows=None))


def _begun(state: TableState, snapshot: Snapshot, position: Lsn) -> TableState:
    return replace(
        state,
        phase=Phase.DATA_SYNC,
        copy=uuid.uuid4().hex,
        snapshot=snapshot.visibility,
        snapshot_lsn=snapshot.lsn,
        position=position,
        rows=0,
        copied_bytes=0,
        error=None,
        retry_at=None,
    )


def _fresh(state: TableState) -> list[str]:
    fresh = state.detail.get("fresh")
    return fresh if isinstance(fresh, list) else []  # earlier versions stored a boolean


def _group(key: TableKey) -> str:
    return f"copy:{key.source}:{key.destination}:{key.table}"

"""Spark's query for one source and destination, and the patience with which its batches are delivered.

Everything is done under one lock, in Spark's callback for a batch or between two of them, so nothing races.
While a stream is idle that is done in a thread of its own: to hand over a large table takes long, and nobody
else is to wait for it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.config import Config
from penstock.config.destinations import DestinationConfig
from penstock.model import Lsn
from penstock.model.backoff import Backoff
from penstock.model.errors import DestinationWentBack, PenstockError, Scope, TaskFailed
from penstock.model.text import error_summary
from penstock.pipeline.outage import Outage
from penstock.pipeline.source_feed import SourceFeed
from penstock.spark import ranges
from penstock.spark.tasks import explained
from penstock.state.store import Store


class Work(Protocol):
    """What is driven."""

    position: Lsn
    patient: bool
    """Whether a batch waits for its interval although there is much to deliver."""

    def apply(self, end: Lsn) -> None:
        """Deliver what committed from the position up to there."""

    def settle(self) -> None:
        """Do what can be done between two batches."""


class StreamQuery:
    def __init__(
        self, config: Config, feed: SourceFeed, destination: DestinationConfig, store: Store, work: Work
    ) -> None:
        self.stopping = threading.Event()
        self.went_back: DestinationWentBack | None = None
        """Why the stream has stopped by itself: it is to begin anew from where the destination stands."""
        self._feed = feed
        self._destination = destination
        self._control = destination.batch_control or config.batch_control
        self._work = work
        self._backoff = Backoff(config.retry.initial, config.retry.max)
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{feed.name} to {destination.name}")
        self._settling: Future[None] | None = None
        self._query: StreamingQuery | None = None
        self._checkpoint = ""
        self._outage = Outage(store, feed.name, destination.name)
        self._failed: PenstockError | None = None
        self._again_at = 0.0
        self._log = structlog.get_logger("penstock.pipeline").bind(
            source=feed.name, destination=destination.name
        )

    @property
    def is_waiting(self) -> bool:
        """Whether the destination is waited for."""
        return self._outage.error is not None

    def start(self, spark: SparkSession) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._checkpoint = tempfile.mkdtemp(prefix="penstock-query-")
        self._outage.record()
        with explained():
            spark.dataSource.register(ranges.Ranges)
            self._query = (
                spark.readStream.format(ranges.NAME)
                .option("spool", str(self._feed.spec.spool.absolute()))
                .option("start", str(self._work.position))
                .option("interval", str(self._control.interval))
                .option("patient", str(self._work.patient).lower())
                .option("maxRows", str(self._control.max_batch_rows))
                .option("maxBytes", str(self._control.max_batch_bytes))
                .load()
                .writeStream.foreachBatch(self._batch)
                .option("checkpointLocation", self._checkpoint)
                .queryName(f"{self._feed.name} to {self._destination.name}")
                .trigger(processingTime="0 seconds")
                .start()
            )

    def stop(self) -> None:
        """Finish the batch at hand, if the destination lets it be finished."""
        self.stopping.set()
        with self._lock:
            pass
        self._thread.shutdown(wait=True)
        if self._query is not None:
            self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def check(self, spark: SparkSession) -> None:
        """Start the query again if something of Spark's own ended it, which may take more than one attempt;
        raise what ended it here."""
        if self._query is None or self._query.isActive or self.stopping.is_set():
            return
        if self._failed is not None:
            raise self._failed
        message = str(self._query.exception()).split("\n")[0][:300]
        self._log.warning("stream query ended, starting it again", error=message)
        with contextlib.suppress(TaskFailed):
            self.start(spark)

    def _batch(self, _frame: DataFrame, number: int) -> None:
        """Deliver a batch; called by Spark."""
        self.deliver(ranges.end_of(Path(self._checkpoint), number))

    def deliver(self, end: Lsn) -> None:
        """Deliver a batch, up to there. What is raised here ends the query; `check` raises it again."""
        with self._lock:
            try:
                self._patiently(lambda: self._work.apply(end))
                self._patiently(self._work.settle)
            except PenstockError as error:
                self._failed = error.at(destination=self._destination.name)
                raise
            except Exception as error:
                self._log.exception("a batch failed", start=str(self._work.position), end=str(end))
                self._failed = PenstockError(
                    f"a batch failed: {error_summary(error)}", destination=self._destination.name
                )
                raise

    def _patiently(self, work: Callable[[], None]) -> None:
        """Try until it is done: a destination that is down is waited for, and holds up nobody else.

        Once the pipeline is asked to stop nothing more is begun. Spark may then take batches for done that
        were not: it is not Spark that remembers.
        """
        while not self.stopping.is_set():
            pause = self._attempt(work)
            if pause is None:
                return
            self.stopping.wait(pause)

    def _attempt(self, work: Callable[[], None]) -> float | None:
        """Return None if it was done, or how long to wait until the next attempt, be the stream idle or not.
        Raises what no waiting can mend: that this process is not the one to work, or is set up
        wrongly."""
        try:
            work()
        except DestinationWentBack as error:
            self.went_back = error
            self.stopping.set()
        except PenstockError as error:
            if error.scope is Scope.RUN and not error.retry:
                raise
            self._outage.tell(error)
            return self._backoff.pause()
        else:
            self._backoff.reset()
            self._outage.tell(None)
        return None

    def tick(self) -> None:
        """Settle, now and then, in the pipeline's thread: an idle stream has no batches to settle things
        after. Raises what the last time ended with, if that cannot be waited for."""
        if self._settling is not None and not self._settling.done():
            return
        if self._settling is not None:
            self._settling.result()
        if time.monotonic() >= self._again_at and not self.stopping.is_set():
            self._settling = self._thread.submit(self.settle)

    def settle(self) -> None:
        """Settle, if no batch is being delivered."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._again_at = time.monotonic() + (self._attempt(self._work.settle) or 0)
        finally:
            self._lock.release()

"""The pipeline: sources, destinations, and the one thread that looks after them all.

Each source has a `SourceFeed` (capture, tables, time), each pair of source and destination a `Stream` (a
Spark query and what happens between its batches), and the `Copier` copies tables for all of them. The thread
here goes round, does what is due and decides when the work is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import structlog
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock.capture.heartbeat import mark
from penstock.capture.launch import folder_of
from penstock.config import Config, SourceConfig
from penstock.config.destinations import DestinationConfig
from penstock.destinations.plugin import type_of
from penstock.destinations.protocol import Target
from penstock.model import Lsn, TableSchema, private
from penstock.model.backoff import Backoff
from penstock.model.errors import EngineLost, PenstockError, Scope, StateUnreachable
from penstock.model.phases import Phase
from penstock.pipeline import shared_targets
from penstock.pipeline.copier import Copier
from penstock.pipeline.followed_mapping import FollowedMapping
from penstock.pipeline.outage import Outage
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.stream import Stream
from penstock.pipeline.table_actions import do_what_is_asked
from penstock.pipeline.table_facts import foreseen
from penstock.pipeline.table_states import to_be_copied
from penstock.pipeline.transform import rules
from penstock.pipeline.transform.analysis import Analysis
from penstock.pipeline.transform.rules import Finding
from penstock.postgres.connection import connect
from penstock.spark.daemon import PRELOAD
from penstock.spark.session import LOG, session
from penstock.state.store import Store, TableState

ROUND = 0.05
"""Seconds between two rounds of the thread."""
HOUSEKEEPING = 1.0
RETRY = 1.0
YOUNG = 0.2
"""Seconds between two looks at a spool that has still to come to where a destination is."""

# Batches of the stream and tasks of copies share the machine, each with a pool of its own.
_SPARK = {
    "spark.scheduler.mode": "FAIR",
    f"spark.executorEnv.{PRELOAD}": "penstock.destinations.postgres.target penstock.postgres.libpq",
}


class Pipeline:
    def __init__(
        self, config: Config, stop: threading.Event | None = None, spark: SparkSession | None = None
    ) -> None:
        """A Spark session that is passed in is used, and left running."""
        self.config = config
        self.stop = stop or threading.Event()
        self._session = spark
        self._log = structlog.get_logger("penstock.pipeline").bind(pipeline=config.pipeline)
        self._feeds: list[SourceFeed] = []
        self._foreseen: dict[str, list[TableSchema]] = {}
        """The sources' tables, where a destination has rules for tables, or two may arrive at one place."""
        self._waiting: list[Lane] = []
        self._streams: list[Stream] = []
        self._kept_house = 0.0
        self._mapping = FollowedMapping(config)
        self.went_round: float | None = None
        """When the thread last began a round, by `time.monotonic`."""

    def run(self, *, once: bool = False) -> bool:
        """Run until told to stop, or, with `once`, until all that had committed is delivered.

        Return whether every table arrives; raise what cannot be waited for.
        """
        if once:
            self.config = without_waiting(self.config)
        self._mapping = FollowedMapping(self.config)
        try:
            return self._run(once)
        except (Py4JNetworkError, PySparkRuntimeError) as error:
            raise EngineLost(f"Spark has ended: {str(error).splitlines()[0]}") from error

    def _run(self, once: bool) -> bool:
        """Find rules that do nothing before anything is made at a source: a slot keeps WAL there. That
        takes Spark, where they have expressions."""
        targets = [
            type_of(destination).make(self.config, destination) for destination in self.config.destinations
        ]
        attempts = self.config.retry.attempts if once else None
        with ExitStack() as opened:
            store = opened.enter_context(self._store())
            self._mapping.look(store)
            self._foresee(attempts)
            if not store.tables():  # later, only a table that would take another's target stops
                shared_targets.refuse(self.config, self._foreseen)
            self._examine(rules.findings)
            spark = None
            if any(map(rules.has_expressions, self.config.destinations)) and not self.stop.is_set():
                spark = opened.enter_context(self._spark())
                self._examine(Analysis(spark).findings)
            opened.enter_context(self._sources(attempts))
            if self.stop.is_set():
                return True
            until = {feed.name: self._mark(feed) for feed in self._feeds} if once else None
            spark = spark or opened.enter_context(self._spark())
            self._deliver(store, spark, targets, until)
            return not any(state.phase is Phase.ERRORED for state in store.tables())

    def _deliver(
        self, store: Store, spark: SparkSession, targets: Sequence[Target], until: dict[str, Lsn] | None
    ) -> None:
        """Deliver until each source is delivered as far as `until` says; None: for ever."""
        self._waiting = [Lane(self.config, feed, target, store) for feed in self._feeds for target in targets]
        copier = Copier(self.config, spark)
        states = store.tables()
        if not states or any(state.phase is not Phase.READY for state in states):
            copier.warm_up()
        try:
            while not self.stop.is_set():
                self._go_round(store, spark, copier)
                if until is not None and self._finished(store, until):
                    break
                self.stop.wait(ROUND)
        finally:
            self._end(self._streams, copier)
            copier.close()
            for target in targets:
                target.close()

    # One round

    def _go_round(self, store: Store, spark: SparkSession, copier: Copier) -> None:
        self.went_round = time.monotonic()
        for feed in self._feeds:
            feed.look_after()
            if feed.lost:
                with self._waiting_for_the_state(RETRY):
                    self._start_over(feed, store, copier)
        for lane in list(self._waiting):
            self.went_round = time.monotonic()
            stream = lane.open(spark)
            if stream is not None:
                self._waiting.remove(lane)
                self._streams.append(stream)
        for feed in self._feeds:
            if not any(lane.untried for lane in self._waiting if lane.feed is feed):
                feed.record_ddl()
        for stream in self._streams:
            stream.query.check(spark)
            stream.query.tick()
        self._begin_again(store, copier)
        copier.look(self._streams)
        if time.monotonic() - self._kept_house >= HOUSEKEEPING:
            self._kept_house = time.monotonic()
            with self._waiting_for_the_state():
                self._keep_house(store, copier)

    @contextmanager
    def _waiting_for_the_state(self, pause: float = 0) -> Iterator[None]:
        """What the state store keeps from being done is done in a later round."""
        try:
            yield
        except StateUnreachable as error:
            self._log.warning("waiting for the state store", error=str(error))
            self.stop.wait(pause)

    def _end(self, streams: Sequence[Stream], copier: Copier) -> None:
        """Finish the batches at hand, give up copies."""
        for stream in streams:
            stream.stopping.set()
        copier.give_up(streams)
        for stream in streams:
            stream.stop()

    def _begin_again(self, store: Store, copier: Copier) -> None:
        """Begin streams anew whose destination went back, as at a start: from where that is."""
        ended = [stream for stream in self._streams if stream.query.went_back is not None]
        self._end(ended, copier)
        for stream in ended:
            self._log.warning(
                "destination went back: its stream begins again from where it stands",
                source=stream.feed.name,
                error=str(stream.query.went_back),
            )
            self._streams.remove(stream)
            self._waiting.append(Lane(self.config, stream.feed, stream.target, store, has_run=True))

    def _start_over(self, feed: SourceFeed, store: Store, copier: Copier) -> None:
        """Let go of everything that hangs on a lost slot, so that the feed can begin anew (see there)."""
        ended = [stream for stream in self._streams if stream.feed is feed]
        self._end(ended, copier)
        self._streams = [stream for stream in self._streams if stream.feed is not feed]
        self._waiting += [Lane(self.config, feed, stream.target, store, has_run=True) for stream in ended]
        for state in store.tables(feed.name):
            if state.phase is not Phase.INIT:
                self._log.info("table to be copied anew", source=feed.name, table=str(state.name))
                store.put(to_be_copied(state), "the slot was lost")
        feed.start_over()

    def _keep_house(self, store: Store, copier: Copier) -> None:
        store.check()
        if self._mapping.look(store):
            self._log.info("mapping taken up", revision=self._mapping.revision)
        do_what_is_asked(store)
        for state in store.tables():
            if state.phase is Phase.DATA_SYNC:
                store.update(state.key, partial(_copied, copier.progress(state)))

    def _finished(self, store: Store, until: dict[str, Lsn]) -> bool:
        if self._waiting or any(stream.reached() <= until[stream.feed.name] for stream in self._streams):
            return False
        return all(state.phase is Phase.READY or self._has_failed(state) for state in store.tables())

    def _has_failed(self, state: TableState) -> bool:
        """Whether the error is not retried, or was as often as a run with an end retries."""
        given_up = state.retry_at is None or state.attempts > self.config.retry.attempts
        return state.phase is Phase.ERRORED and given_up

    # What it runs on

    @contextmanager
    def _store(self) -> Iterator[Store]:
        url = self.config.state.url.get_secret_value()
        with Store.open(url, self.config.pipeline, exclusive=True) as store:
            yield store

    @contextmanager
    def _sources(self, attempts: int | None) -> Iterator[None]:
        try:
            # First the one that is called as the pipeline is: an earlier version had its spool in the place
            # of the pipeline's folder.
            for source in sorted(self.config.sources, key=lambda one: one.name != self.config.pipeline):
                feed = SourceFeed(self.config, source)
                self._feeds.append(feed)
                self._patiently(source.name, partial(feed.start, self.stop), attempts)
            yield
        finally:
            for feed in self._feeds:
                feed.stop()

    def _foresee(self, attempts: int | None) -> None:
        has_rules = any(destination.tables for destination in self.config.destinations)
        if has_rules or shared_targets.may_collide(self.config):
            for source in self.config.sources:
                look = partial(self._foresee_source, source)
                self._patiently(source.name, look, attempts)

    def _foresee_source(self, source: SourceConfig) -> None:
        self._foreseen[source.name] = foreseen(source)

    def _examine(self, findings: Callable[[DestinationConfig, list[TableSchema]], Iterable[Finding]]) -> None:
        """Refuse rules that do nothing; where they are not to be refused, tell of them."""
        tables = [table for schemas in self._foreseen.values() for table in schemas]
        for destination in self.config.destinations if not self.stop.is_set() else ():
            for finding in rules.refuse(destination, findings(destination, tables)):
                self._log.warning("rule may be wrong", destination=destination.name, reason=str(finding))

    def _patiently(self, source: str, work: Callable[[], None], attempts: int | None) -> None:
        """Wait for a source that is not there yet: servers start together. With `once`, so many attempts."""
        backoff = Backoff(self.config.retry.initial, self.config.retry.max)
        for attempt in count():
            if self.stop.is_set():
                break
            try:
                work()
                break
            except PenstockError as error:
                if not error.retry or attempt == attempts:
                    raise error.at(source=source) from None
                pause = backoff.pause()
                self._log.warning(
                    "waiting for the source", source=source, error=str(error), again_in=round(pause, 1)
                )
                self.stop.wait(pause)

    @contextmanager
    def _spark(self) -> Iterator[SparkSession]:
        if self._session is not None:
            yield self._session
            return
        config, log = self.config, folder_of(self.config) / LOG
        private.tighten_file(config.spool.path / LOG)  # an earlier version had it there
        spark = session(
            config.spark.master, _SPARK | config.spark.conf, config.pipeline, log, config.withheld
        )
        try:
            yield spark
        finally:
            spark.sparkContext.setLogLevel("OFF")
            spark.stop()

    def _mark(self, feed: SourceFeed) -> Lsn:
        with connect(feed.spec.conninfo) as connection:
            return mark(connection)


class Lane:
    """A pair of source and destination whose stream has not begun: the destination may not be there yet."""

    def __init__(
        self, config: Config, feed: SourceFeed, target: Target, store: Store, *, has_run: bool = False
    ) -> None:
        self.feed = feed
        self.untried = not has_run
        """Whether nothing is known yet of what speaks against it."""
        self._config = config
        self._has_run = has_run
        """Then whatever keeps it from going on is waited for, as while it ran."""
        self._target = target
        self._store = store
        self._outage = Outage(store, feed.name, target.name)
        self._destination = next(d for d in config.destinations if d.name == target.name)
        self._backoff = Backoff(config.retry.initial, config.retry.max)
        self._again_at = 0.0

    def open(self, spark: SparkSession) -> Stream | None:
        if time.monotonic() < self._again_at or not self.feed.readable:
            return None
        stream = None
        try:
            stream = Stream(self._config, self.feed, self._target, self._destination, self._store)
            self._target.open(spark)
            if stream.start(spark):
                self._outage.tell(None)
                return stream
            stream.stop()
            self._again_at = time.monotonic() + YOUNG
        except PenstockError as error:
            if stream is not None:
                stream.stop()
            error.at(destination=self._target.name)
            if not error.retry and not (self._has_run and error.scope is not Scope.RUN):
                raise
            self._outage.tell(error)
            self._again_at = time.monotonic() + self._backoff.pause()
        self.untried = False
        return None


def without_waiting(config: Config) -> Config:
    """Return the configuration with batches that begin as soon as there is something to deliver."""
    at_once = {"interval": 0}
    destinations = tuple(
        destination.model_copy(update={"batch_control": control.model_copy(update=at_once)})
        for destination in config.destinations
        for control in [destination.batch_control or config.batch_control]
    )
    return config.model_copy(update={"destinations": destinations})


def _copied(done: int, state: TableState) -> TableState | None:
    return replace(state, copied_bytes=done) if state.phase is Phase.DATA_SYNC else None

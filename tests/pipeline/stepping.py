"""A pipeline that is driven by hand, round by round, in the test's own thread: the same each time, and quick.

Spark's query does nothing here but say how far a batch goes; that is asked of the manifest instead. The
capture outlives the pipeline, whose death is what is looked at.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.capture import launch, worker
from penstock.capture.heartbeat import mark
from penstock.capture.spec import CaptureSpec
from penstock.config import Config, load
from penstock.destinations.plugin import type_of
from penstock.destinations.protocol import TableCopy, Target
from penstock.embedded.postgres import PostgresServer
from penstock.pipeline import pipeline as running
from penstock.pipeline import source_feed as feeding
from penstock.pipeline import stream as streaming
from penstock.pipeline.copier import Copier
from penstock.pipeline.pipeline import Lane, Pipeline
from penstock.pipeline.query import StreamQuery
from penstock.pipeline.source_feed import SourceFeed
from penstock.postgres.connection import connect
from penstock.spool.manifest import Manifest
from penstock.state.store import Store
from tests.bed import Database, fresh_database
from tests.capture.running import Running
from tests.capture.running import running as captured
from tests.pipeline.delivered import KINDS, Delivered, InPostgres
from tests.pipeline.faults import Faults
from tests.pipeline.running import configuration


class SteppedQuery(StreamQuery):
    def start(self, spark: SparkSession) -> None:  # noqa: ARG002
        self._outage.record()

    def check(self, spark: SparkSession) -> None:  # noqa: ARG002
        if self._failed is not None:
            raise self._failed

    def tick(self) -> None:
        self.settle()


class SharedCapture:
    """The capture that runs anyway, in the place of one of the pipeline's own."""

    capture: Running
    pid = os.getpid()

    def __init__(self, spec: CaptureSpec) -> None: ...

    def has_begun(self) -> bool:
        self.check()
        return True

    def check(self) -> None:
        if self.capture.error is not None:
            raise self.capture.error

    def close(self) -> None: ...


class Process:
    """What a process of a pipeline has in memory."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.config = config
        self._spark = spark
        self.pipeline = Pipeline(config, threading.Event(), spark)
        self.store: Store | None = None
        self.targets = [type_of(destination).make(config, destination) for destination in config.destinations]
        self.copier = Copier(config, spark)

    def start(self) -> None:
        pipeline = self.pipeline
        url = self.config.state.url.get_secret_value()
        self.store = Store.open(url, self.config.pipeline, exclusive=True)
        pipeline._mapping.look(self.store)
        feed = SourceFeed(self.config, self.config.sources[0])
        pipeline._feeds.append(feed)
        pipeline._patiently(feed.name, lambda: feed.start(pipeline.stop), None)
        pipeline._waiting = [Lane(self.config, feed, target, self.store) for target in self.targets]

    def round(self) -> None:
        assert self.store is not None
        self.pipeline._go_round(self.store, self._spark, self.copier)
        while self.copier._running:
            time.sleep(0.002)
        for stream in self.pipeline._streams:
            end = stream._manifest.next_position(stream.position)
            if end > stream.position:
                stream.query.deliver(end)

    def stop(self) -> None:
        """In good order."""
        self.pipeline._end(self.pipeline._streams, self.copier)
        self._close(lambda store: store.close())

    def abandon(self) -> None:
        """As it is when the process is gone: connections are closed, locks are free, nothing more is said."""
        for stream in self.pipeline._streams:
            stream.query.stopping.set()
            stream._manifest.close()
        self._close(_let_go)

    def _close(self, close: Callable[[Store], None]) -> None:
        self.copier.close()
        for target in self.targets:
            target.close()
        for feed in self.pipeline._feeds:
            feed.stop()
        if self.store is not None:
            close(self.store)


def _let_go(store: Store) -> None:
    """The lock goes with the process; the row that names its holder stays."""
    assert store._lease is not None
    store._lease._lock.release()
    store._database.close()


def settings(folder: Path, source: Database, destination: Database, **other: Any) -> Config:
    """`other` is for the destination, a PostgreSQL database."""
    return settings_of(folder, source, InPostgres(source, destination, folder), **other)


def settings_of(folder: Path, source: Database, delivered: Delivered, **other: Any) -> Config:
    file = configuration(
        folder,
        source,
        delivered.configuration(**other),
        sources=[{"name": "source", "dsn": source.dsn, "ddl_capture": delivered.ddl_capture}],
        retry={"initial": "2ms", "max": "10ms", "attempts": 5},
        initial_copy={"workers": 1},
    )
    return load(file)


@dataclass
class Bed:
    """A source whose capture runs all the while, and a destination, for one run after the other."""

    source: Database
    destination: Database
    kind: str
    delivered: Delivered
    spark: SparkSession
    config: Config
    folder: Path
    faults: Faults
    runs: int = 0
    during: list[str] = field(default_factory=list)

    @property
    def spool(self) -> Path:
        return launch.spec_of(self.config, self.config.sources[0]).spool

    def until_captured(self) -> None:
        with connect(self.source.dsn) as connection:
            marked = mark(connection)
        with closing(Manifest.open(self.spool)) as manifest:
            while manifest.position <= marked:
                assert SharedCapture.capture.error is None
                time.sleep(0.002)

    def clear(self) -> Config:
        """As if nothing had ever been delivered; a configuration with a state of its own."""
        self.runs += 1
        self.source.execute("drop table if exists t, u, v")
        self.delivered.clear()
        with closing(Manifest.open(self.spool)) as manifest:
            for consumer in manifest.consumers():
                manifest.forget(consumer)
        url = f"sqlite:///{self.folder}/state{self.runs}.db"
        state = self.config.state.model_copy(update={"url": type(self.config.state.url)(url)})
        return self.config.model_copy(update={"state": state})


@pytest.fixture
def bed(
    server: PostgresServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Bed]:
    """Into PostgreSQL, unless a test names another kind of destination."""
    source, destination = fresh_database(server), fresh_database(server)
    database = next(source)
    into = next(destination)
    kind = getattr(request, "param", "postgres")
    delivered: Delivered = KINDS[kind](database, into, tmp_path)
    delivered.install(monkeypatch)
    config = settings_of(tmp_path, database, delivered)
    faults = Faults()
    during: list[str] = []
    faults.install(monkeypatch)
    monkeypatch.setattr(streaming, "StreamQuery", SteppedQuery)
    monkeypatch.setattr(feeding, "CaptureProcess", SharedCapture)
    for module, name in (
        (feeding, "DISCOVERY"),
        (feeding, "CLOCK"),
        (running, "HOUSEKEEPING"),
        (running, "YOUNG"),
        (streaming, "TOLD"),
    ):
        monkeypatch.setattr(module, name, 0.0)
    copy_table = delivered.target.copy_table

    def copied(self: Target, copy: TableCopy) -> int:
        statements, during[:] = tuple(during), []
        database.execute(*statements)
        rows: int = copy_table(self, copy)
        return rows

    monkeypatch.setattr(delivered.target, "copy_table", copied)
    launch.prepare(config.sources[0])
    spec = replace(launch.spec_of(config, config.sources[0]), interval=0.002, heartbeat=0)
    monkeypatch.setattr(worker, "HOUSEKEEPING", 0.005)
    with captured(spec) as capture:
        SharedCapture.capture = capture
        yield Bed(database, into, kind, delivered, spark, config, tmp_path, faults, 0, during)
    for made in (source, destination):
        next(made, None)

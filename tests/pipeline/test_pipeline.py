"""From a source to a PostgreSQL destination: copied, followed, and kept equal."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from penstock.pipeline import source_feed
from penstock.pipeline.catalog_look import Look, PublishedTables
from penstock.pipeline.stream import Stream
from penstock.postgres.connection import Connection
from penstock.state.store import TableState
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.pipeline.test_errors import penstock


def test_tables_are_copied_and_then_followed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table item (id integer primary key, label text)",
        "insert into item select n, 'row ' || n from generate_series(1, 1000) n",
        "create table line (n integer, body text); alter table line replica identity full",
        "insert into line values (1, 'twice'), (1, 'twice'), (2, null)",
    )
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.item", "public.line")
        assert contents(destination, "item") == contents(source, "item")
        source.execute(
            "begin; update item set label = 'new' where id < 10; delete from item where id > 990;"
            "insert into item values (5000, null); delete from line where ctid = '(0,1)'; commit",
        )
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        assert contents(destination, "line") == contents(source, "line")


def test_tables_come_and_go_while_it_runs(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table first (id integer primary key, a text)", "insert into first values (1, 'x')")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.first")
        source.execute("create table second (id integer primary key)", "insert into second values (1), (2)")
        pipeline.until_phase(Phase.READY, "public.second")
        source.execute("insert into second values (3)", "insert into first values (2, 'y')")
        pipeline.until(lambda: len(contents(destination, "second")) == 3)
        source.execute("alter table first add b integer default 7, alter a type varchar(9)")
        pipeline.until(lambda: contents(destination, "first") == contents(source, "first"))
        source.execute("alter table second rename to third", "insert into third values (4)")
        pipeline.until(lambda: contents(destination, "third") == contents(source, "third"))
        source.execute("drop table first")
        pipeline.until(lambda: "public.first" not in pipeline.tables())
        assert len(contents(destination, "first")) == 2


def test_a_look_at_the_tables_that_takes_its_time_holds_up_nothing(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, looks, goes_on = Look.take, threading.Event(), threading.Event()

    def wait(self: Look, connection: Connection) -> PublishedTables:
        looks.set()
        goes_on.wait()
        return take(self, connection)

    monkeypatch.setattr(source_feed, "DISCOVERY", 0.1)
    source.execute("create table t (id integer primary key)", "create table u (id integer primary key)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        source.execute("insert into t values (1)", "insert into u values (1)")
        pipeline.until(lambda: contents(destination, "t") == contents(destination, "u") == ["(1)"])
        (stream,) = pipeline._pipeline._streams
        pipeline.until(lambda: all(is_compared(stream, state) for state in pipeline.states()))
        monkeypatch.setattr(Look, "take", wait)
        try:
            pipeline.until(looks.is_set)
            assert penstock("pause", file, "t").returncode == 0
            pipeline.until(lambda: pipeline.tables()["public.t"].is_paused)
            source.execute("insert into u values (2)")
            pipeline.until(lambda: contents(destination, "u") == ["(1)", "(2)"])
            assert not goes_on.is_set()
        finally:
            goes_on.set()


def is_compared(stream: Stream, state: TableState) -> bool:
    """Whether the catalog has nothing more to say of the schema in which the last rows came."""
    return stream.following._agreed.get(state.key.table, (None, None))[1] == state.version

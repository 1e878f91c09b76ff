"""Schema changes on real servers, followed by PostgreSQL and by a consumer of files that runs `ddl.txt`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.phases import Phase
from penstock.pipeline import source_feed
from penstock.pipeline.stream import Stream
from penstock.pipeline.table_states import Tables
from penstock.state.store import Store, TableState
from tests.bed import Database, fresh_database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.developer import Developer
from tests.pipeline.running import Running, configuration, contents, difference, running, to_postgres

CHANGES = {
    "dropped": "alter table {0} drop a; alter table {0} rename b to a; insert into {0} values (9, 'new')",
    "swapped": "alter table {0} rename a to x; alter table {0} rename b to a; alter table {0} rename x to b;"
    "insert into {0} (id, a, b) values (9, 'new a', 'new b')",
    "again": "alter table {0} drop a; alter table {0} add a text default 'default';"
    "insert into {0} (id, a, b) values (9, 'new a', 'new b')",
    "last": "alter table {0} drop b; alter table {0} add b text;"
    "insert into {0} (id, a, b) values (9, 'new a', 'new b')",
    "computed": "alter table {0} alter a type text using a || '!'; insert into {0} values (9, 'new', 'new')",
}


@pytest.fixture
def rebuilt(server: PostgresServer) -> Iterator[Database]:
    """What a consumer of the files makes of them."""
    yield from fresh_database(server)


def until_all_have(
    pipeline: Running, source: Database, copies: tuple[Database, Consumer, Database], tables: list[TableName]
) -> None:
    """Until both have what the source has, and still have it after some looks at the catalog."""
    destination, consumer, rebuilt = copies
    for _ in range(2):
        pipeline.until(lambda: not difference(source, destination, tables))
        until_rebuilt(pipeline, consumer, source, rebuilt, lambda: tables)
        time.sleep(3)


@pytest.mark.every_server
def test_columns_whose_names_come_back(
    spark: SparkSession, source: Database, destination: Database, rebuilt: Database, tmp_path: Path
) -> None:
    for name in CHANGES:
        source.execute(
            f"create table {name} (id int primary key, a text, b text)",
            f"insert into {name} select n, 'a ' || n, 'b ' || n from generate_series(1, 3) n",
        )
    source.execute(
        "create table parts (id int primary key, a text) partition by range (id)",
        "create table parts_low partition of parts for values from (0) to (5)",
        "create table parts_high partition of parts default",
        "insert into parts select n, 'a ' || n from generate_series(1, 8) n",
    )
    copies = destination, Consumer(source, rebuilt), rebuilt
    tables = [TableName("public", name) for name in (*CHANGES, "parts")]
    file = configuration(tmp_path, source, to_postgres(destination), to_files(tmp_path))
    with running(file, spark) as pipeline:
        until_all_have(pipeline, source, copies, tables)
        source.execute(*(f"begin; {change.format(name)}; commit" for name, change in CHANGES.items()))
        source.execute("alter table parts add b text default 'default'", "insert into parts values (9)")
        until_all_have(pipeline, source, copies, tables)


def test_a_column_that_is_added_just_before_a_copy(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last look at the tables was before it; their copies wait for whoever adds it, and have it."""
    source.execute("create table t (id int primary key)", "insert into t values (1)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline, source.connect() as connection:
        pipeline.until_phase(Phase.READY, "public.t")
        monkeypatch.setattr(source_feed, "DISCOVERY", 60.0)
        with connection.transaction():
            connection.execute("alter table t add b text")
            connection.execute("update t set b = 'filled'")
            with Store.open(pipeline.config.state.url.get_secret_value(), "test", exclusive=False) as store:
                store.request("reload", {"tables": ["public.t"], "source": "source"})
            pipeline.until_phase(Phase.INIT, "public.t")
        pipeline.until(lambda: contents(destination, "t") == ["(1,filled)"])
        for seconds in (60.0, 0.5):
            monkeypatch.setattr(source_feed, "DISCOVERY", seconds)
            time.sleep(2)
            assert contents(destination, "t") == ["(1,filled)"]


def test_a_look_that_the_stream_has_outrun(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column is made again, and the catalog read; two columns swap their names, and a row comes that looks
    as those of before did. Only then is there time to compare: what was read first does not hold for it."""
    source.execute(
        "create table t (id int primary key, a text, b text)", "insert into t values (1, 'a', 'b')"
    )
    streams, may_settle, settle = list[Stream](), threading.Event(), Stream.settle

    def settle_if_allowed(stream: Stream) -> None:
        streams.append(stream)
        if may_settle.is_set():
            settle(stream)

    monkeypatch.setattr(Stream, "settle", settle_if_allowed)
    may_settle.set()
    with running(configuration(tmp_path, source, to_postgres(destination)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        monkeypatch.setattr(source_feed, "DISCOVERY", 60.0)
        may_settle.clear()
        time.sleep(0.5)
        source.execute("begin; alter table t drop a; alter table t add a text default 'new'; commit")
        streams[0].feed.discover()
        source.execute(
            "begin; alter table t rename a to x; alter table t rename b to a; alter table t rename x to b;"
            "insert into t (id, a, b) values (2, 'a 2', 'b 2'); commit"
        )
        pipeline.until(lambda: '(2,"a 2","b 2")' in contents(destination, "t"))
        may_settle.set()
        time.sleep(1)
        monkeypatch.setattr(source_feed, "DISCOVERY", 0.5)
        tables = [TableName("public", "t")]
        pipeline.until(lambda: not difference(source, destination, tables))
        time.sleep(2)
        assert not difference(source, destination, tables)


def test_a_crash_before_it_is_noted_which_schema_was_followed(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.execute("create table t (id int primary key, a int)", "insert into t values (1, 1), (2, 2)")
    file = configuration(tmp_path, source, to_postgres(destination))
    put = Tables.put

    def put_or_die(tables: Tables, state: TableState, why: str = "") -> None:
        if "amount" in state.detail.get("numbers", ()):
            raise RuntimeError("killed")
        put(tables, state, why)

    pipeline = Running(load(file), spark)
    try:
        pipeline.until_phase(Phase.READY, "public.t")
        monkeypatch.setattr(Tables, "put", put_or_die)
        source.execute(
            "begin; alter table t rename a to amount; alter table t add b text;"
            "update t set b = 'row ' || id; commit"
        )
        end = time.monotonic() + 60
        while pipeline.error is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        pipeline.stop()
    assert "RuntimeError" in f"{pipeline.error!r} {pipeline.error}"
    monkeypatch.undo()
    with running(file, spark) as pipeline:
        source.execute("begin; alter table t add c int; insert into t values (3, 3, 'row 3', 3); commit")
        tables = [TableName("public", "t")]
        pipeline.until(lambda: not difference(source, destination, tables))
        time.sleep(3)
        assert not difference(source, destination, tables)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12))
def test_whatever_a_developer_alters(
    spark: SparkSession,
    source: Database,
    destination: Database,
    rebuilt: Database,
    tmp_path: Path,
    seed: int,
) -> None:
    random = Random(seed)
    names = [f"t{number}" for number in range(4)]
    developers = [Developer(source, name, random) for name in names]
    copies = destination, Consumer(source, rebuilt, rewritten=True), rebuilt
    file = configuration(tmp_path, source, to_postgres(destination), to_files(tmp_path))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *(f"public.{name}" for name in names))
        for _ in range(40):
            random.choice(developers).transaction()
            time.sleep(random.choice((0, 0, 0.05, 0.5)))
        until_all_have(pipeline, source, copies, [TableName("public", name) for name in names])

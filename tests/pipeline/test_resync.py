"""A slot that has lost changes, a spool that somebody removed, and the modes of starting."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.memory import Memory
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.errors import SlotLost
from penstock.model.events import Insert
from penstock.model.phases import Phase
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.table_states import to_be_copied
from penstock.spool import manifest
from penstock.state.store import Store
from tests.bed import Database, started_server
from tests.capture.standby import backup_of, put_back
from tests.pipeline.running import configuration, contents, running, to_postgres

SLOT = "penstock_test_source"


@pytest.fixture
def far(server: PostgresServer) -> Iterator[Database]:
    """A destination on a server for this test alone: to stop."""
    own = started_server(server.bin)
    yield Database(own, "postgres")
    own.remove()


def following(source: Database, **other: Any) -> dict[str, Any]:
    replication = {"on_slot_lost": other.pop("on_slot_lost", "resync")}
    return {"sources": [{"name": "source", "dsn": source.dsn, "replication": replication, **other}]}


def drop_slot(source: Database) -> None:
    source.execute(
        f"select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where slot_name = '{SLOT}'",
        f"select pg_drop_replication_slot('{SLOT}')",
    )


def tables_of(file: Path) -> dict[str, Phase]:
    config = load(file)
    with Store.open(config.state.url.get_secret_value(), "test", exclusive=False) as store:
        return {str(state.name): state.phase for state in store.tables()}


def given_shop(source: Database) -> None:
    source.execute(
        "create table item (id integer primary key, label text)",
        "insert into item select n, 'row ' || n from generate_series(1, 100) n",
        "create table emptied (id integer primary key); insert into emptied values (1)",
    )


def lose_changes(source: Database) -> None:
    """What nobody will ever tell the destination of."""
    source.execute(
        "update item set label = 'unseen' where id < 10",
        "delete from item where id > 90",
        "insert into item values (1000, 'unseen')",
        "truncate emptied",
    )


def test_a_lost_slot_is_an_error_that_changes_nothing(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    given_shop(source)
    file = configuration(
        tmp_path, source, to_postgres(destination), **following(source, on_slot_lost="error")
    )
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
    before = contents(destination, "item"), manifest.position(tmp_path / "spool" / "test" / "source")
    drop_slot(source)
    lose_changes(source)
    with pytest.raises(SlotLost, match="does not exist") as told:
        Pipeline(load(file), spark=spark).run()
    assert "on_slot_lost: resync" in str(told.value)
    assert source.query("select 1 from pg_replication_slots where slot_name = %s", SLOT) == []
    assert (
        contents(destination, "item"),
        manifest.position(tmp_path / "spool" / "test" / "source"),
    ) == before
    assert set(tables_of(file).values()) == {Phase.READY}


def test_a_slot_that_is_lost_while_the_pipeline_runs_is_made_anew(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    given_shop(source)
    memory = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory"}
    file = configuration(
        tmp_path,
        source,
        to_postgres(destination),
        memory | {"options": {"key": tmp_path.name}},
        **following(source),
    )
    fewest, done = [100], threading.Event()

    def read() -> None:
        while not done.wait(0.01):
            fewest.append(len(contents(destination, "item")))

    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
        reader = threading.Thread(target=read)
        reader.start()
        drop_slot(source)
        lose_changes(source)
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        pipeline.until(lambda: contents(destination, "emptied") == [])
        pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
        source.execute("insert into item values (2000, 'seen again')")
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        copied = Memory.of(tmp_path.name).copies[TableName("public", "item")].to_pylist()
        assert {"id": 1000, "label": "unseen"} in copied
        done.set()
        reader.join()
    assert min(fewest) >= 91, "readers see the old rows until the new ones are there"
    assert not (tmp_path / "spool" / "test" / ".source.lost").exists()


class Crash(Exception):
    """As if the process had been killed."""


class CrashingFeed(SourceFeed):
    """A feed that replaces its slot up to a step, and no further."""

    crash_before = ""

    def _remove_spool(self) -> None:
        self._reach("remove the spool")
        super()._remove_spool()

    def _begin(self) -> None:
        if self.lost:
            self._reach("make the slot")
        super()._begin()
        if self.lost and self._capture is not None:
            self._capture.wait_until_captured()
            self._reach("read the spool")

    def _reach(self, step: str) -> None:
        if step == self.crash_before:
            raise Crash(step)


@pytest.mark.parametrize(
    "step",
    [
        "remove the spool",
        pytest.param("make the slot", marks=pytest.mark.slow),
        pytest.param("read the spool", marks=pytest.mark.slow),
    ],
)
def test_a_crash_while_the_slot_is_made_anew_loses_nothing(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, step: str
) -> None:
    given_shop(source)
    file = configuration(tmp_path, source, to_postgres(destination), **following(source))
    config = load(file)
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
    source.execute(f"select pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
    lose_changes(source)
    source.execute(f"select pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
    feed = CrashingFeed(config, config.sources[0])
    feed.crash_before = step
    feed.start(threading.Event())
    assert "was moved on" in str(feed.lost)
    with Store.open(config.state.url.get_secret_value(), "test", exclusive=True) as store:
        for state in store.tables():
            store.put(to_be_copied(state), "the slot was lost")
    feed.start_over()
    with pytest.raises(Crash, match=step):
        feed.look_after()
    feed.stop()
    assert len(contents(destination, "item")) == 100
    with running(file, spark) as pipeline:
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        pipeline.until(lambda: contents(destination, "emptied") == [])


def test_a_slot_that_is_not_ours_is_never_dropped(source: Database, tmp_path: Path) -> None:
    source.execute("create table t (id integer primary key)")
    source.query(f"select pg_create_physical_replication_slot('{SLOT}')")
    try:
        file = configuration(tmp_path, source, to_postgres(source), **following(source))
        feed = SourceFeed(load(file), load(file).sources[0])
        feed.start(threading.Event())
        feed.start_over()
        with pytest.raises(SlotLost, match="physical slot"):
            feed.look_after()
        feed.stop()
        assert source.query("select slot_type from pg_replication_slots where slot_name = %s", SLOT)
    finally:
        source.query(f"select pg_drop_replication_slot('{SLOT}')")


def test_tables_whose_changes_went_with_the_spool_are_copied_anew(
    spark: SparkSession, source: Database, far: Database, tmp_path: Path
) -> None:
    """With `ack: spool` the slot is ahead of the destinations: what the spool had is nowhere else."""
    source.execute(
        "create table held (id integer primary key, v integer)",
        "create table behind (id integer primary key)",
    )
    far.execute("create table held (id integer primary key, v integer check (v > 0))")
    spool = {"path": str(tmp_path / "spool"), "ack": "spool"}
    file = configuration(tmp_path, source, to_postgres(far), spool=spool)
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.held", "public.behind")
        source.execute("insert into held values (1, -1)")
        pipeline.until_phase(Phase.ERRORED, "public.held")
        far.server.stop()
        source.execute("insert into behind values (1)")
        ((end,),) = source.query("select pg_current_wal_insert_lsn()")
        confirmed = "select confirmed_flush_lsn >= %s from pg_replication_slots where slot_name = %s"
        pipeline.until(lambda: source.query(confirmed, end, SLOT) == [(True,)])
    shutil.rmtree(tmp_path / "spool" / "test" / "source")
    far.server.start()
    far.execute("alter table held drop constraint held_v_check")
    with running(file, spark) as pipeline:
        pipeline.until(lambda: contents(far, "held") == ["(1,-1)"])
        pipeline.until(lambda: contents(far, "behind") == ["(1)"])
        pipeline.until_phase(Phase.READY, "public.held", "public.behind")


def test_a_removed_spool_costs_nothing_where_the_slot_has_it_all(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table held (id integer primary key, v integer)", "create table other (id int primary key)"
    )
    destination.execute("create table held (id integer primary key, v integer check (v > 0))")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.held", "public.other")
        source.execute("insert into held values (1, -1)")
        pipeline.until_phase(Phase.ERRORED, "public.held")
        source.execute("insert into held values (2, 2)", "insert into other values (1)")
        pipeline.until(lambda: contents(destination, "other") == ["(1)"])
    shutil.rmtree(tmp_path / "spool" / "test" / "source")
    destination.execute("alter table held drop constraint held_v_check", "insert into held values (0, 0)")
    with running(file, spark) as pipeline:
        pipeline.until(lambda: "public.held" in pipeline.tables())
        with Store.open(pipeline.config.state.url.get_secret_value(), "test", exclusive=False) as store:
            store.request("retry", {"tables": ["public.held"]})
        pipeline.until_phase(Phase.READY, "public.held", "public.other")
        assert contents(destination, "held") == ["(0,0)", "(1,-1)", "(2,2)"], "caught up, not copied"


def test_streaming_only_copies_nothing_and_delivers_every_change(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table t (id integer primary key, v text)", "insert into t values (1, 'not copied')"
    )
    destination.execute(
        "create table t (id integer primary key, v text)", "insert into t values (7, 'there')"
    )
    memory = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory"}
    file = configuration(
        tmp_path,
        source,
        to_postgres(destination, tables={"public.t": {"set": {"v": "upper(v)"}}}),
        memory | {"options": {"key": tmp_path.name}},
        **following(source, startup_mode="streaming_only"),
    )
    with running(file, spark) as pipeline:
        begun = "select 1 from pg_replication_slots where slot_name = %s and confirmed_flush_lsn is not null"
        pipeline.until(lambda: source.query(begun, SLOT))
        source.execute("insert into t values (2, 'streamed')")  # most likely before the table is ready
        pipeline.until(lambda: "(2,STREAMED)" in contents(destination, "t"))
        source.execute("update t set v = 'late' where id = 1", "delete from t where id = 2")
        pipeline.until(lambda: contents(destination, "t") == ["(1,LATE)", "(7,there)"])
        given = Memory.of(tmp_path.name)
        pipeline.until(lambda: any(isinstance(event, Insert) for event in given.events))
        assert given.copies == {}


@pytest.mark.slow
def test_force_reload_copies_every_table_at_each_start(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)", "insert into t values (1)")
    file = configuration(
        tmp_path, source, to_postgres(destination), **following(source, startup_mode="force_reload")
    )
    for _ in range(2):
        with running(file, spark) as pipeline:
            pipeline.until(lambda: contents(destination, "t") == ["(1)"])
            pipeline.until_phase(Phase.READY, "public.t")
        destination.execute("insert into t values (99)")


def test_a_table_that_comes_later_has_what_was_being_written_when_it_came(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """A transaction that wrote before the table was published: the stream does not have those rows."""
    source.execute("create table first (id integer primary key)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.first")
        source.execute("create table late (id integer primary key)")
        with source.connect() as writer:
            writer.execute("begin")
            writer.execute("insert into late values (1)")
            published = "select 1 from pg_publication_tables where tablename = 'late'"
            pipeline.until(lambda: source.query(published))
            with pytest.raises(AssertionError, match="not within"):
                pipeline.until(
                    lambda: (
                        pipeline.tables().get("public.late", None) is not None
                        and pipeline.tables()["public.late"].phase is Phase.READY
                    ),
                    seconds=3,
                )
            writer.execute("commit")
        pipeline.until_phase(Phase.READY, "public.late")
        assert contents(destination, "late") == ["(1)"]


@pytest.mark.parametrize("spool", ["there", "removed"])
def test_a_server_that_went_back_is_copied_anew_and_followed(
    spark: SparkSession, own_database: Database, destination: Database, tmp_path: Path, spool: str
) -> None:
    """Both the spool and the destinations are ahead of it: of a history that is gone."""
    source = own_database
    given_shop(source)
    memory = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory"}
    file = configuration(
        tmp_path,
        source,
        to_postgres(destination),
        memory | {"options": {"key": tmp_path.name}},
        **following(source),
    )
    source.server.stop()
    with backup_of(source.server) as kept:
        source.server.start()
        with running(file, spark) as pipeline:
            pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
            source.execute(
                "insert into item select n, repeat('of a history that is gone', 20)"
                " from generate_series(1001, 5000) n",
                "delete from item where id <= 50",
            )
            pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        source.server.stop()
        put_back(source.server, kept)
        source.server.start()
    if spool == "removed":  # by an operator, who dropped the slot as well (the backup is from before it)
        shutil.rmtree(tmp_path / "spool" / "test" / "source")
    with running(file, spark) as pipeline:
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        pipeline.until_phase(Phase.READY, "public.item", "public.emptied")
        source.execute("insert into item values (2000, 'seen')")
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        events = Memory.of(tmp_path.name).events
        pipeline.until(
            lambda: ("2000", "seen") in [one.table_row for one in events if isinstance(one, Insert)]
        )

"""What the stream does not show: a table that was not published for a while, partitions that come and go, a
key that is none. Each is followed, or told; none makes a statement of the application fail."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from penstock.pipeline.arrivals import Arrivals
from penstock.pipeline.catalog_look import PublishedTables
from penstock.pipeline.status import collect
from tests.bed import Database
from tests.pipeline.running import Running, configuration, contents, difference, running, to_postgres


def until_equal(pipeline: Running, source: Database, destination: Database, *tables: str) -> None:
    names = [TableName("public", table) for table in tables]
    pipeline.until(lambda: not difference(source, destination, names))


def test_a_table_that_leaves_the_publication_and_comes_back_misses_nothing(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table t (id int primary key); insert into t values (1)",
        "create table u (id int primary key); insert into u values (1)",
        "create publication mine for table t, u",
    )
    replication = {"publication_name": "mine", "create_publication": False}
    given = {"name": "source", "dsn": source.dsn, "replication": replication}
    file = configuration(tmp_path, source, to_postgres(destination), sources=[given])
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        source.execute(
            "alter publication mine drop table u",
            "insert into u values (2)",
            "alter publication mine add table u",  # before anybody looked
            "insert into u values (3)",
        )
        until_equal(pipeline, source, destination, "u")
        source.execute("alter publication mine drop table t")
        pipeline.until(lambda: "public.t" not in pipeline.tables())
        with source.connect() as writer:
            writer.execute("begin; insert into t values (2)")  # unpublished
            source.execute("alter publication mine add table t")
            pipeline.until(lambda: "public.t" in pipeline.tables())
            time.sleep(3)
            assert pipeline.tables()["public.t"].phase is Phase.INIT, "it waits for who wrote unseen"
            writer.execute("commit")
        source.execute("insert into t values (3)")
        until_equal(pipeline, source, destination, "t", "u")
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
    source.execute(
        "alter publication mine drop table u",
        "insert into u values (4)",
        "alter publication mine add table u",
    )
    with running(file, spark) as pipeline:  # the same while nobody ran
        until_equal(pipeline, source, destination, "t", "u")


def test_what_went_unseen_is_found_by_whichever_look_is_followed(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables are compared with one look at the catalog, and the next comes before its columns are."""
    source.execute("create table t (id int primary key)", "create publication mine for table t")
    replication = {"publication_name": "mine", "create_publication": False}
    given = {"name": "source", "dsn": source.dsn, "replication": replication}
    looks, look = list[PublishedTables](), Arrivals.look

    def look_late(arrivals: Arrivals, found: PublishedTables) -> None:
        looks.append(found)
        look(arrivals, looks[0])

    monkeypatch.setattr(Arrivals, "look", look_late)
    with running(
        configuration(tmp_path, source, to_postgres(destination), sources=[given]), spark
    ) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        source.execute(
            "alter publication mine drop table t",
            "insert into t values (1)",
            "alter publication mine add table t",
        )
        until_equal(pipeline, source, destination, "t")


def test_partitions_come_and_go(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table m (id int, y int, primary key (id, y)) partition by list (y)",
        *(f"create table m_{year} partition of m for values in ({year})" for year in (20, 21, 22, 23)),
        "insert into m select n, 20 + n % 4 from generate_series(1, 400) n",
        "create table m_24 (id int, y int, primary key (id, y)); insert into m_24 values (1, 24)",
    )
    file = configuration(tmp_path, source, to_postgres(destination))

    def copy() -> str | None:
        return pipeline.tables()["public.m"].copy

    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.m")
        until_equal(pipeline, source, destination, "m")
        first = copy()
        source.execute("create table m_25 partition of m for values in (25)")
        pipeline.until(lambda: len(pipeline.tables()["public.m"].detail["leaves"]) == 5)
        source.execute("insert into m values (1, 25)", "delete from m where id < 9 and y = 20")
        until_equal(pipeline, source, destination, "m")
        assert copy() == first, "a partition that begins empty is no reason to copy"
        for statement in (
            "truncate m_20",
            "alter table m attach partition m_24 for values in (24)",
            "alter table m detach partition m_21",
            "drop table m_22",
            "truncate m",
        ):
            source.execute(statement)
            until_equal(pipeline, source, destination, "m")
        assert copy() != first
        source.execute("insert into m values (7, 20)")
        until_equal(pipeline, source, destination, "m")


def test_a_table_whose_key_is_no_identity_is_left_alone(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """Its updates never fail, and `status` tells of it; so one that loses its identity, after a look."""
    source.execute(
        "create table kept (id int primary key, v int); insert into kept values (1, 1)",
        "create table late (id int primary key, v int); insert into late values (1, 1)",
        "create table d (id int primary key deferrable initially deferred, v int)",
        "insert into d values (1, 1)",
    )
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.kept", "public.late")
        source.execute("update d set v = 2")
        source.execute("alter table late drop constraint late_pkey")
        pipeline.until(lambda: "public.late" not in pipeline.tables())
        source.execute("update late set v = 2", "update kept set v = 2", "update d set v = 3")
        left = {
            table["table"]: table["reason"] for table in collect(pipeline.config)["sources"][0]["left_out"]
        }
        assert left.keys() == {"public.d", "public.late"}
        assert "deferrable" in left["public.d"]
        assert "no primary key" in left["public.late"]
        source.execute("alter table late add primary key (id)", "insert into late values (2, 2)")
        until_equal(pipeline, source, destination, "late", "kept")
    assert contents(destination, "d") == []


def test_what_a_publication_does_not_publish_is_not_taken_for_all_there_is(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """A DBA's publication without updates and deletes leaves its tables out, from the start or later. One of
    ours is set back."""
    source.execute(
        "create table t (id int primary key, v int); insert into t values (1, 1)",
        "create publication mine for table t with (publish = 'insert')",
    )
    replication = {"publication_name": "mine", "create_publication": False}
    given = {"name": "source", "dsn": source.dsn, "replication": replication}
    file = configuration(tmp_path, source, to_postgres(destination), sources=[given])
    publish = "alter publication mine set (publish = '{}')"
    with running(file, spark) as pipeline:

        def left_out() -> bool:
            left = collect(pipeline.config)["sources"][0]["left_out"]
            told = any("the publication does not publish" in table["reason"] for table in left)
            return told and "public.t" not in pipeline.tables()

        pipeline.until(left_out)
        source.execute("update t set v = 2", publish.format("insert, update, delete, truncate"))
        pipeline.until_phase(Phase.READY, "public.t")
        until_equal(pipeline, source, destination, "t")
        source.execute(publish.format("insert, update, delete"), "truncate t")
        pipeline.until(left_out)
        source.execute(publish.format("insert, update, delete, truncate"), "insert into t values (3, 3)")
        until_equal(pipeline, source, destination, "t")


def test_a_table_without_columns_in_a_publication_of_all_tables_keeps_no_other_from_arriving(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """Nor one that loses all of its columns and gets another."""
    source.execute(
        "create table bare (); alter table bare replica identity full",
        "create table t (id int primary key)",
        "create table u (a int); alter table u replica identity full",
        "create publication mine for all tables",
        "insert into bare default values; insert into t values (1); insert into u values (1)",
    )
    replication = {"publication_name": "mine", "create_publication": False}
    given = {"name": "source", "dsn": source.dsn, "replication": replication}
    with running(
        configuration(tmp_path, source, to_postgres(destination), sources=[given]), spark
    ) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        source.execute(
            "insert into bare default values; insert into u values (2); insert into t values (2)",
            "alter table u drop a; insert into u default values; insert into t values (3)",
            "delete from bare; insert into t values (4)",
        )
        until_equal(pipeline, source, destination, "t")
        source.execute("alter table u add b int; insert into u values (5); insert into t values (5)")
        until_equal(pipeline, source, destination, "t", "u")
        assert set(pipeline.tables()) == {"public.t", "public.u"}

"""The registry and what goes with it: order, cleaning up, schema changes, start-up modes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.files import unfinished_copies
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.target import FilesTarget
from penstock.model import TableId, TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.consumer import Consumer, unpacked
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import configuration, running

THINGS = [TableName("public", "things")]


def make_things(source: Database) -> None:
    source.execute(
        "create table things (id int primary key, name text)",
        "insert into things select i, 'thing ' || i from generate_series(1, 50) i",
    )


def paths(source: Database, kind: str) -> list[str]:
    found = source.query(
        "select file_path from cdc_registry.file_log where file_type = %s order by end_lsn", kind
    )
    return [path for (path,) in found]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_folder_is_given_out_once(source: Database, tmp_path: Path, restarted: bool) -> None:
    """A copy is set aside in it, and is in no registry yet. Another table that had its name meanwhile got the
    same folder after a commit had failed, or in another process, and lost its files when the copy was given
    up."""
    source.execute("create table things (id int primary key)", "create table others (id int primary key)")
    config = load(configuration(tmp_path, source, to_files(tmp_path)))

    def opened() -> tuple[FilesTarget, SourceRecords]:
        target = FilesTarget(config, config.destinations[0])
        target.open(None)  # type: ignore[arg-type]
        (records,) = target._records.values()
        records.open()
        return target, records

    target, records = opened()
    source.execute(
        "insert into cdc_registry.file_log (table_name, batch_timestamp, file_path, file_type, start_lsn,"
        " end_lsn, row_count, file_size_bytes, sha256) values ('public.things', now() + '1 hour', 'there',"
        " 'streaming', '0/1', '0/2', 1, 1, repeat('0', 64))"
    )

    def taken() -> str:
        with records.transaction() as connection:
            _, folder = target._writer.folders(records, connection).next(connection, THINGS[0])
            unfinished_copies.begin(connection, records.stream, TableId(len(folders)), folder, folder)
        return folder

    folders: list[str] = []
    folders.append(taken())
    records.close()
    if restarted:
        target, records = opened()
    folders.append(taken())
    assert folders[1] > folders[0]
    records.close()


@pytest.mark.every_server
def test_what_the_source_ran_is_told(spark: SparkSession, source: Database, tmp_path: Path) -> None:
    make_things(source)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.things")
        source.execute(
            "create index things_name on things (name)",
            "alter table things add column size int default 3; insert into things values (99, 'x', 4)",
        )
        pipeline.until(lambda: any("add column" in unpacked(p).decode() for p in paths(source, "ddl")))
        pipeline.until(lambda: len(paths(source, "streaming")) == 1)
        source.execute("drop index things_name", "drop table things")
        pipeline.until(lambda: "DROP TABLE" in str(source.query("select ddl_tag from ddl_history")))
    told = "".join(unpacked(path).decode() for path in paths(source, "ddl"))
    assert "] CREATE INDEX\n--   create index things_name on things (name)" in told
    assert "] ALTER TABLE\n\n" in told, "the text of several commands at once is not kept"
    assert "insert into" not in told
    assert """\nalter table "public"."things" add column "size" integer default '3';\n""" in told
    flagged = source.query("select distinct file_type from cdc_registry.file_log where has_ddl order by 1")
    assert flagged == [("ddl",), ("streaming",)]
    tags = source.query("select ddl_tag from ddl_history where schema_name = 'public' order by id")
    assert [tag for (tag,) in tags] == ["CREATE INDEX", "ALTER TABLE", "DROP INDEX", "DROP TABLE"]


def test_a_password_in_a_command_is_not_recorded(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    make_things(source)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.things")
        source.execute(
            "create subscription s connection 'host=x password=hush' publication p"
            " with (connect = false, slot_name = none)",
            "alter table things add column password text default 'none'",
        )
        source.execute("drop subscription s")
    recorded = source.query("select ddl_tag, ddl_command from ddl_history order by id")
    assert recorded[-3:] == [
        ("CREATE SUBSCRIPTION", None),
        ("ALTER TABLE", "alter table things add column password text default 'none'"),
        ("DROP SUBSCRIPTION", "drop subscription s"),
    ]


def test_the_state_of_a_table_from_when_it_is_found_until_it_is_gone(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    """To be copied it waits for somebody who writes to it, as it is published only then. He gives it another
    name meanwhile; and a name may be another table's later."""
    make_things(source)
    source.execute("create table late (id int primary key)", "create publication own for table things")
    replication = {"publication_name": "own", "create_publication": False}
    sources = [{"name": "source", "dsn": source.dsn, "replication": replication}]

    def modes() -> dict[str, str]:
        return dict(source.query("select table_name, current_mode from cdc_registry.table_state"))

    with running(configuration(tmp_path, source, to_files(tmp_path), sources=sources), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.things")
        with source.connect() as writer, writer.transaction():
            writer.execute("insert into late values (1)")
            source.execute("alter publication own add table late")
            waiting = {"public.late": "pending_reload", "public.things": "streaming"}
            pipeline.until(lambda: modes() == waiting)
            writer.execute("alter table late rename to later")
        pipeline.until(lambda: modes() == {"public.later": "streaming", "public.things": "streaming"})
        before = source.query("select table_id from cdc_registry.table_state order by table_name")
        source.execute("drop table things")
        make_things(source)
        source.execute("alter publication own add table things", "drop table later")
        pipeline.until(lambda: modes() == {"public.things": "streaming"})
        (table,) = source.query("select 'things'::regclass::oid::bigint")
        pipeline.until(lambda: source.query("select table_id from cdc_registry.table_state") == [table])
        assert table not in before
        pipeline.until(lambda: len(pipeline.tables()) == 1)
        assert modes() == {"public.things": "streaming"}


def test_old_files_go_when_consumers_are_past_them(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    make_things(source)
    registry = {"cleanup_after_days": 1}
    config = configuration(tmp_path, source, to_files(tmp_path, file_registry=registry))
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.things")
        source.execute("insert into things values (60, 'a')")
        pipeline.until(lambda: len(paths(source, "streaming")) == 1)
    (full,), (changes,) = paths(source, "full_reload"), paths(source, "streaming")
    source.execute(
        "update cdc_registry.file_log set created_at = now() - interval '2 days'",
        "insert into cdc_registry.consumers select 'me', table_name, end_lsn from cdc_registry.file_log"
        " where file_type = 'full_reload'",
    )
    with running(config, spark) as pipeline:
        source.execute("insert into things values (61, 'b')")
        pipeline.until(lambda: not Path(full).parent.exists())
        pipeline.until(lambda: len(paths(source, "streaming")) == 2)
    assert paths(source, "full_reload") == []
    assert Path(changes).exists(), "the consumer has not read it"
    assert source.query("table cdc_registry.removals") == []


@pytest.mark.slow
def test_start_up_modes(spark: SparkSession, source: Database, destination: Database, tmp_path: Path) -> None:
    make_things(source)

    def config(mode: str) -> Path:
        sources = [{"name": "source", "dsn": source.dsn, "startup_mode": mode}]
        return configuration(tmp_path, source, to_files(tmp_path), sources=sources)

    with running(config("streaming_only"), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.things")
        source.execute("insert into things values (60, 'a')")
        pipeline.until(lambda: len(paths(source, "streaming")) == 1)
        assert paths(source, "full_reload") == []
    with running(config("force_reload"), spark) as pipeline:
        pipeline.until(lambda: len(paths(source, "full_reload")) == 1)
        pipeline.until_phase(Phase.READY, "public.things")
    with running(config("auto"), spark) as pipeline:
        source.execute("insert into things values (61, 'b')")
        pipeline.until(lambda: len(paths(source, "streaming")) == 2)
        assert len(paths(source, "full_reload")) == 1
    source.execute(
        "delete from cdc_registry.file_log"
        " where end_lsn < (select min(end_lsn) from cdc_registry.file_log where file_type = 'schema')"
    )
    consumer = Consumer(source, destination)
    consumer.run()
    assert destination.query("select count(*) from things") == [(52,)]


def test_without_a_registry_files_are_written_all_the_same(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    make_things(source)
    config = configuration(tmp_path, source, to_files(tmp_path, file_registry={"enabled": False}))
    folder = tmp_path / "files" / "public.things"

    def written(files: int) -> bool:
        return len(list(folder.glob("*/streaming.csv.gz"))) == files

    for number in (1, 2):
        with running(config, spark) as pipeline:
            pipeline.until_phase(Phase.READY, "public.things")
            source.execute(f"insert into things values ({number + 60}, 'x')")
            pipeline.until(partial(written, number))
    assert len(list(folder.glob("*/full_reload.csv.gz"))) == 1
    assert source.query("select to_regclass('cdc_registry.file_log')") == [(None,)]


def test_a_publication_of_all_tables_has_the_registry_and_that_does_no_harm(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    make_things(source)
    source.execute("create publication everything for all tables")
    replication = {"publication_name": "everything", "create_publication": False}
    sources = [{"name": "source", "dsn": source.dsn, "replication": replication}]
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path), sources=sources), spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: THINGS)
        source.execute("update things set name = 'y'")
        until_rebuilt(pipeline, consumer, source, destination, lambda: THINGS)
        assert set(pipeline.tables()) == {"public.things"}
        time.sleep(1)
    assert len(paths(source, "streaming")) == 1


def test_a_table_whose_delivery_was_committed_is_not_delivered_again(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to a commit may be lost: then it is all done a second time."""
    for name in ("hand_over", "catch_up"):
        own = getattr(FilesTarget, name)

        def twice(self: FilesTarget, *given: Any, own: Any = own) -> None:
            own(self, *given)
            own(self, *given)

        monkeypatch.setattr(FilesTarget, name, twice)
    make_things(source)
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: THINGS)
        source.execute("alter table things add column size int default 3")
        until_rebuilt(pipeline, consumer, source, destination, lambda: THINGS)
        source.execute("insert into things values (90, 'x', 1)")
        until_rebuilt(pipeline, consumer, source, destination, lambda: THINGS)
        assert pipeline.tables()["public.things"].attempts == 0
    assert len(paths(source, "full_reload")) == 1
    told = [path for path in paths(source, "ddl") if "\nalter table" in unpacked(path).decode()]
    assert len(told) == 1

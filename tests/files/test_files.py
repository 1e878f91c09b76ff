"""Files and their registry, followed by a consumer that knows nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs
from structlog.typing import EventDict

from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database, fresh_database
from tests.files.consumer import Consumer, unpacked
from tests.pipeline.running import Running, configuration, difference, running
from tests.scenario import Workload


def to_files(folder: Path, **other: Any) -> dict[str, Any]:
    return {"name": "files", "type": "files", "base_path": str(folder / "files"), **other}


def until_rebuilt(
    pipeline: Running,
    consumer: Consumer,
    source: Database,
    into: Database,
    tables: Callable[[], list[TableName]],
) -> None:
    pipeline.until(lambda: source.query("select to_regclass('cdc_registry.removals')") != [(None,)])
    end = time.monotonic() + 60
    while told := difference(source, into, tables()):
        if pipeline.error is not None:
            raise pipeline.error
        assert time.monotonic() < end, told
        consumer.run()
        time.sleep(0.2)


@pytest.mark.every_server
def test_a_table_arrives_and_is_followed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table users (id int primary key, name text, about text)",
        "alter table users alter about set storage external",
        "insert into users select i, 'name, ' || i, repeat('long ', 1000) from generate_series(1, 100) i",
        """insert into users values (101, '', null), (102, e'a "quoted"\\nline', '\\.')""",
    )
    consumer = Consumer(source, destination)
    tables = [TableName("public", "users")]
    file = configuration(tmp_path, source, to_files(tmp_path))
    with capture_logs() as logged, running(file, spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        source.execute(
            "update users set name = 'x' where id < 10",
            "update users set id = id + 1000 where id between 20 and 30",
            "delete from users where id = 5",
            "begin; truncate users; insert into users values (1, 'new', 'new'); commit",
        )
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        source.execute(
            "alter table users add column age int default 7",
            "insert into users values (2, 'b', null, 3)",
            "alter table users rename column name to title",
            "insert into users values (3, 'c', null, 3)",
            "alter table users drop column about",
            "insert into users values (4, 'd', 5)",
        )
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        pipeline.until_phase(Phase.READY, "public.users")
    assert measured(logged) == registered(source)


def measured(logged: list[EventDict]) -> dict[str, tuple[int, ...]]:
    """Of each type of file, by what the log tells the metrics: files, bytes, and bytes before compression."""
    sums: dict[str, tuple[int, ...]] = {}
    for event in logged:
        if event["event"] == "files written":
            assert (event["source"], event["destination"]) == ("source", "files")
            sizes = event["files"], event["bytes"], event["uncompressed_bytes"]
            former = sums.get(event["type"], (0, 0, 0))
            sums[event["type"]] = tuple(map(sum, zip(former, sizes, strict=True)))
    return sums


def registered(source: Database) -> dict[str, tuple[int, ...]]:
    """The same, by the files themselves."""
    rows = source.query("select file_type, file_path, file_size_bytes from cdc_registry.file_log")
    return {
        wanted: (
            sum(type == wanted for type, _, _ in rows),
            sum(size for type, _, size in rows if type == wanted),
            sum(len(unpacked(path)) for type, path, _ in rows if type == wanted),
        )
        for wanted in {type for type, _, _ in rows}
    }


def test_each_of_several_sources_has_its_own_files_and_registry(
    spark: SparkSession, source: Database, server: PostgresServer, destination: Database, tmp_path: Path
) -> None:
    with contextmanager(fresh_database)(server) as other:
        for number, database in enumerate((source, other)):
            database.execute(
                "create table users (id int primary key, name text)",
                f"insert into users values (1, 'of {number}')",
            )
        sources = [{"name": "eu", "dsn": source.dsn}, {"name": "us", "dsn": other.dsn}]
        tables = [TableName("public", "users")]
        with running(configuration(tmp_path, source, to_files(tmp_path), sources=sources), spark) as pipeline:
            for name, database in (("eu", source), ("us", other)):
                consumer = Consumer(database, destination)
                until_rebuilt(pipeline, consumer, database, destination, lambda: tables)
                database.execute("update users set name = 'changed'", "insert into users values (2, 'new')")
                until_rebuilt(pipeline, consumer, database, destination, lambda: tables)
                paths = database.query("select file_path from cdc_registry.file_log")
                assert len(paths) >= 3
                assert all(path.startswith(f"{tmp_path}/files/{name}/public.users/") for (path,) in paths)
                destination.execute("drop table users")


@pytest.mark.slow
def test_a_random_workload_is_rebuilt(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    workload = Workload(source, 3).create()
    workload.run(30)
    destination.execute("create type mood as enum ('sad', 'ok', 'so \"happy\"')")
    replication = {"publication_name": "scenario", "create_publication": False}
    sources = [{"name": "source", "dsn": source.dsn, "replication": replication}]
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path), sources=sources), spark) as pipeline:
        with workload.running(writers=2):
            pipeline.until(lambda: any(s.phase is Phase.READY for s in pipeline.tables().values()))
            time.sleep(5)
        workload.run_for(2, writers=1)
        until_rebuilt(pipeline, consumer, source, destination, lambda: workload.tables)

"""Reloads of single tables by markers: the whole way of one, and what a crash at each stage leaves."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import app
from penstock.model import TableName
from penstock.model.errors import UnknownTable
from penstock.model.phases import Phase
from penstock.pipeline import table_reloads as reload_module
from penstock.postgres import ddl
from penstock.postgres.connection import connect
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.killed import POINTS
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import Running, configuration, running

USERS = [TableName("public", "users")]
EXPORT = "copy users to stdout (format csv, header)"


def make_users(source: Database, rows: int = 100) -> None:
    source.execute(
        "create table users (id int primary key, name text)",
        f"insert into users select i, 'name ' || i from generate_series(1, {rows}) i",
        "comment on table users is 'People, and what they are called'",
    )


def ask(
    source: Database, action: str = "EXPORT_START", id: uuid.UUID | None = None, **more: Any
) -> uuid.UUID:
    export = id or uuid.uuid4()
    said = json.dumps({"action": action, "export_id": str(export), **more})
    source.execute(f"comment on table users is 'CDC_RELOAD: {said}'")
    return export


def status(source: Database, export: uuid.UUID) -> str | None:
    found = source.query("select status from cdc_registry.reload_operations where export_id = %s", export)
    return str(found[0][0]) if found else None


def comment(source: Database) -> str:
    return str(source.query("select obj_description('users'::regclass)")[0][0])


def completed(pipeline: Running, source: Database, export: uuid.UUID) -> None:
    pipeline.until(lambda: status(source, export) == "completed")
    pipeline.until(lambda: comment(source) == "People, and what they are called")


def full_copies(source: Database) -> int:
    return int(
        source.query("select count(*) from cdc_registry.file_log where file_type = 'full_reload'")[0][0]
    )


@pytest.mark.every_server
def test_a_marker_asks_for_a_new_copy(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    make_users(source)
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        export = ask(source)
        source.execute("update users set name = 'x' where id < 10", "delete from users where id = 50")
        completed(pipeline, source, export)
        assert full_copies(source) == 2
        source.execute("insert into users values (200, 'after')")
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
    ((mode, reloading),) = source.query(
        "select current_mode, reload_export_id from cdc_registry.table_state"
        " where table_name = 'public.users'"
    )
    assert (mode, reloading) == ("streaming", None)
    ((started, ended, rows),) = source.query(
        "select start_marker_lsn < end_marker_lsn, end_marker_lsn is not null, rows_exported"
        " from cdc_registry.reload_operations"
    )
    assert (started, ended, rows) == (True, True, 99)


def registered(source: Database) -> set[str]:
    return {path for (path,) in source.query("select file_path from cdc_registry.file_log")}


def there(folder: Path) -> set[str]:
    return {
        str(path) for path in (folder / "files").rglob("*") if path.is_file() and path.name != ".penstock"
    }


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_reload_survives_a_kill(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, point: str
) -> None:
    make_users(source, rows=1000)
    consumer = Consumer(source, destination)
    config = configuration(tmp_path, source, to_files(tmp_path))
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
    export = ask(source)
    source.execute("update users set name = 'x' where id < 10")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.files.killed", config, point], timeout=90, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    source.execute("delete from users where id = 50", "insert into users values (2000, 'new')")
    consumer.run()
    with running(config, spark) as pipeline:
        completed(pipeline, source, export)
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
        assert full_copies(source) == 2
    assert there(tmp_path) == registered(source)


def written(source: Database, folder: Path, exported: bytes) -> list[Path]:
    """A copy that somebody else makes, with the description of ours."""
    ((described,),) = source.query(
        "select file_path from cdc_registry.file_log"
        " where (table_name, file_type) = ('public.users', 'schema') order by end_lsn desc limit 1"
    )
    folder.mkdir()
    files = {folder / "schema.yml": Path(described).read_bytes(), folder / "full_reload.csv": exported}
    for file, data in files.items():
        file.write_bytes(data)
    return list(files)


def register(source: Database, files: list[Path]) -> None:
    for place, file in enumerate(files):
        data = file.read_bytes()
        rows = data.count(b"\n") - 1 if place else 0
        source.execute(
            "insert into cdc_registry.file_log (table_name, batch_timestamp, file_path, file_type,"
            " start_lsn, end_lsn, row_count, file_size_bytes, sha256)"
            f" select 'public.users', '2100-01-01', '{file}', '{file.stem}',"
            f" lsn, lsn + 1000 + {place}, {rows}, {len(data)}, '{hashlib.sha256(data).hexdigest()}'"
            " from pg_current_wal_insert_lsn() lsn"
        )


def test_somebody_elses_export_is_followed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """He sets both markers, and registers his own file, at a position beyond the changes meanwhile: what the
    consumer gets then are the changes that are not in it."""
    make_users(source)
    consumer = Consumer(source, destination)
    options = {"delta_strategy": "validate"}
    config = configuration(tmp_path, source, to_files(tmp_path, reload_coordination=options))
    with running(config, spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
        export = ask(source, external=True)
        pipeline.until(lambda: status(source, export) == "active")
        source.execute("update users set name = 'in the export' where id = 1")
        with source.connect() as reader, reader.transaction():
            reader.execute("set transaction isolation level repeatable read")
            ((snapshot,),) = reader.execute("select pg_current_snapshot()::text").fetchall()
            source.execute(
                "update users set name = 'after it' where id = 2", "insert into users values (500, 'x')"
            )
            with reader.cursor().copy(EXPORT) as copy:
                exported = b"".join(copy)
        folder = tmp_path / "files" / "public.users" / "2100-01-01T00-00-00"
        register(source, written(source, folder, exported))
        assert "streaming" not in str(source.query("select current_mode from cdc_registry.table_state"))
        ask(source, "EXPORT_END", export, snapshot=snapshot)
        completed(pipeline, source, export)
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
    assert full_copies(source) == 2
    assert folder.exists(), "it is his, and it is registered"
    counted = source.query("select delta_rows, delta_applied from cdc_registry.reload_operations")
    assert counted == [(3, 2)], "one of the three changes since START is in the export"


def test_somebody_elses_export_outlives_a_restart_before_it_is_registered(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    make_users(source)
    source.execute("create table others (id int primary key)")
    consumer = Consumer(source, destination)
    config = configuration(tmp_path, source, to_files(tmp_path))
    with running(config, spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
        export = ask(source, external=True)
        pipeline.until(lambda: status(source, export) == "active")
        with source.connect() as reader, reader.cursor().copy(EXPORT) as copy:
            exported = b"".join(copy)
        files = written(source, tmp_path / "files" / "public.users" / "2100-01-01T00-00-00", exported)
    source.execute("insert into others values (1)")
    with running(config, spark) as pipeline:
        streamed = "select from cdc_registry.file_log where file_type = 'streaming'"
        pipeline.until(lambda: source.query(streamed))
        assert all(file.exists() for file in files)
        register(source, files)
        source.execute("insert into users values (500, 'x')")
        ask(source, "EXPORT_END", export)
        completed(pipeline, source, export)
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)


def test_an_export_that_never_comes_gives_way_to_a_copy_of_ours(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    make_users(source)
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
        abandoned = ask(source, external=True)
        pipeline.until(lambda: status(source, abandoned) == "active")
        source.execute("update users set name = 'waits' where id = 1")
        ours = ask(source)
        completed(pipeline, source, ours)
        assert status(source, abandoned) == "completed"
        source.execute("update users set name = 'goes on' where id = 2")
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
    assert full_copies(source) == 2


def test_a_table_that_is_renamed_and_locked_while_it_is_reloaded(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """END wants a lock that somebody has: the stream goes on. And the table is not called what it was."""
    monkeypatch.setattr(reload_module, "PAUSE", 0.2)
    make_users(source)
    source.execute("create table others (id int primary key)")
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users", "public.others")
        with source.connect() as writer, source.connect() as locker, locker.transaction():
            with writer.transaction():  # the copy waits for it
                writer.execute("insert into users values (300, 'x')")
                export = ask(source)
                pipeline.until(lambda: status(source, export) == "active")
            locker.execute("lock table users in share update exclusive mode")
            pipeline.until(lambda: status(source, export) == "exported")
            source.execute("insert into others values (1)")
            until_rebuilt(
                pipeline, consumer, source, destination, lambda: [*USERS, TableName("public", "others")]
            )
            assert status(source, export) == "exported"
            locker.execute("alter table users rename to people")
        pipeline.until(lambda: status(source, export) == "completed")
        until_rebuilt(pipeline, consumer, source, destination, lambda: [TableName("public", "people")])
        own = "select obj_description('people'::regclass)"
        pipeline.until(lambda: source.query(own) == [("People, and what they are called",)])


def test_a_comment_is_put_on_the_table_that_is_meant(source: Database) -> None:
    source.execute("create table a (id int)", "create table b (id int)")
    ((a,), (b,)) = source.query(
        "select oid::bigint from pg_class where relname in ('a', 'b') order by relname"
    )
    source.execute("alter table a rename to c", "alter table b rename to a", "alter table c rename to b")
    with connect(source.dsn) as connection:
        assert ddl.set_comment(connection, a, "of the first")
        assert source.query("select obj_description('b'::regclass)") == [("of the first",)]
        source.execute("drop table a")
        assert not ddl.set_comment(connection, b, "of nothing")


def test_reloads_wait_for_each_other(spark: SparkSession, source: Database, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    source.execute(
        *(f"create table {name} (id int primary key, n int)" for name in names),
        *(f"insert into {name} select i, i from generate_series(1, 100) i" for name in names),
    )
    config = configuration(tmp_path, source, to_files(tmp_path, reload_coordination={"max_concurrent": 1}))
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *(f"public.{name}" for name in names))
        for name in names:
            said = json.dumps({"action": "EXPORT_START", "export_id": name})
            source.execute(
                f"comment on table {name} is 'CDC_RELOAD: {said}'; update {name} set n = 0 where id < 9"
            )
        statuses = "select status, count(*) from cdc_registry.reload_operations group by 1"
        active = 0
        while dict(source.query(statuses)).get("completed") != 3:
            active = max(active, dict(source.query(statuses)).get("active", 0))
            pipeline.until(lambda: True)
    assert active <= 1
    assert full_copies(source) == 6


def test_reload_is_asked_for_on_the_command_line(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    make_users(source)
    config = configuration(tmp_path, source, to_files(tmp_path))
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        told = CliRunner().invoke(app, ["reload", str(config), "public.us*"])
        assert (told.exit_code, told.stdout) == (0, "public.users of source will be copied anew\n")
        pipeline.until(lambda: full_copies(source) == 2)
        pipeline.until(lambda: comment(source) == "People, and what they are called")
        nothing = CliRunner().invoke(app, ["reload", str(config), "public.nobody"])
        assert isinstance(nothing.exception, UnknownTable)


def test_without_triggers_a_reload_goes_through_the_state(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    make_users(source)
    sources = [{"name": "source", "dsn": source.dsn, "ddl_capture": "off"}]
    config = configuration(tmp_path, source, to_files(tmp_path), sources=sources)
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        assert CliRunner().invoke(app, ["reload", str(config), "users"]).exit_code == 0
        pipeline.until(lambda: full_copies(source) == 2)
    assert comment(source) == "People, and what they are called"
    assert source.query("select to_regclass('public.ddl_history')") == [(None,)]


def test_a_role_that_owns_nothing_does_without_triggers_and_markers(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    make_users(source)
    role = f"reader_{source.name}"
    source.execute(
        f"create role {role} login replication",
        f"grant select on users to {role}; grant create on database {source.name} to {role}",
        "create publication scenario for table users",
    )
    replication = {"publication_name": "scenario", "create_publication": False}
    dsn = source.server.dsn(source.name, user=role)
    sources = [{"name": "source", "dsn": dsn, "replication": replication}]
    consumer = Consumer(source, destination)
    config = configuration(tmp_path, source, to_files(tmp_path), sources=sources)
    with running(config, spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
        source.execute("alter table users add column age int", "insert into users values (300, 'x', 5)")
        until_rebuilt(pipeline, consumer, source, destination, lambda: USERS)
    assert source.query("select count(*) from cdc_registry.file_log where file_type = 'ddl'") == [(1,)]
    source.execute(f"drop owned by {role}", f"drop role {role}")

"""Reloads of single tables by markers: the whole way of one, and what a crash at each stage leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.killed import POINTS
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import Running, configuration, running

USERS = [TableName("public", "users")]


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
    return {str(path) for path in (folder / "files").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "point",
    [
        point if point == "during the export" else pytest.param(point, marks=pytest.mark.slow)
        for point in POINTS
    ],
)
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

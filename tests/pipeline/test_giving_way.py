"""A copy gives way: nobody waits long for the lock that it has on its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.destinations.files.full_copy import Sheet
from penstock.destinations.postgres.copy import table_copy
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration, contents, running, to_postgres

PARTS = {"partition_mb": 1}
ROWS = "insert into t select g, repeat('x', 1000) from generate_series(1, 2000) g"
SLOW = """
create function penstock.slowly() returns trigger language plpgsql
as 'begin perform pg_advisory_lock_shared(1); return new; end';
create trigger slowly before insert on penstock.copied execute function penstock.slowly();
alter table penstock.copied enable always trigger slowly;
"""
"""Tasks that copy wait for the lock, as long as the destination's sessions wait: ten seconds."""


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        (["create table t (id int primary key, v text)"], "alter table t add w text"),
        (
            [
                "create table t (id int primary key, v text) partition by range (id)",
                "create table first partition of t for values from (1) to (5000)",
            ],
            "create table second partition of t for values from (5000) to (9999)",
        ),
    ],
    ids=["altered", "partitioned"],
)
def test_a_statement_that_waits_for_the_copy_goes_first(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    table: list[str],
    statement: str,
) -> None:
    file = configuration(tmp_path, source, to_postgres(destination), initial_copy=PARTS)
    source.execute("create table other (id int primary key)")
    with running(file, spark) as pipeline, destination.connect() as slow, capture_logs() as lines:
        pipeline.until_phase(Phase.READY, "public.other")
        slow.execute("select pg_advisory_lock(1)")
        destination.execute(SLOW)
        source.execute(*table, ROWS)
        pipeline.until(lambda: destination.query("select from pg_locks where not granted"), 20)
        source.execute(f"set lock_timeout = '8s'; {statement}")
        pipeline.until(lambda: [line for line in lines if line["event"] == "table errored"], 20)
        slow.execute("select pg_advisory_unlock(1)")
        pipeline.until_phase(Phase.READY, "public.t")
        assert contents(destination, "t") == contents(source, "t")
    told = [line["why"] for line in lines if line["event"] == "table errored"]
    assert "the copy gave way to process" in told[0]


@pytest.mark.parametrize("last_step", [table_copy, Sheet])
def test_the_table_is_free_while_the_destination_finishes_the_copy(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last_step: Any,
) -> None:
    def finished(*arguments: Any) -> Any:
        locks.append(source.query("select mode from pg_locks where relation = 't'::regclass"))
        return finish(*arguments)

    locks: list[list[tuple[Any, ...]]] = []
    finish = last_step.finish
    monkeypatch.setattr(last_step, "finish", finished)
    source.execute("create table t (id int primary key)")
    to = to_files(tmp_path) if last_step is Sheet else to_postgres(destination)
    with running(configuration(tmp_path, source, to), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
    assert locks == [[]]

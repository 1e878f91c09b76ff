"""Tables get their own comments back after a reload; where that fails the stream goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import ConnectionFailed
from penstock.model.phases import Phase
from penstock.pipeline import table_reloads
from penstock.postgres import ddl
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.pipeline.stepping import Bed
from tests.pipeline.test_table_reloads import process, state, until

COMMENT = "select obj_description('t'::regclass)"


@pytest.fixture
def stranger(source: Database) -> Iterator[str]:
    """A role that may replicate, and knows nothing of the schema `penstock`."""
    role = f"stranger_{source.name}"
    source.execute(
        f"create role {role} login replication", f"grant create on database {source.name} to {role}"
    )
    yield role
    source.execute(f"drop owned by {role} cascade; drop role {role}")


def test_a_role_that_may_not_read_the_comments_of_tables_does_without(
    spark: SparkSession, source: Database, destination: Database, stranger: str, tmp_path: Path
) -> None:
    """Another pipeline, of another role, has installed the event triggers."""
    with source.connect() as connection:
        assert ddl.install(connection, "CDC_RELOAD:")
    source.execute("create table t (id int primary key)", "insert into t values (1)")
    source.execute(f"alter table t owner to {stranger}")
    sources = [{"name": "source", "dsn": source.server.dsn(source.name, user=stranger), "ddl_capture": "on"}]
    file = configuration(tmp_path, source, to_postgres(destination), sources=sources)
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        source.execute("insert into t values (2)")
        pipeline.until(lambda: contents(destination, "t") == ["(1)", "(2)"])


def test_comments_are_restored_once_the_source_can_be_asked_for_them(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise ConnectionFailed("the server is gone")

    bed.delivered.ddl_capture = "on"
    bed.source.execute(
        "create table t (id integer primary key)",
        "comment on table t is 'its own'",
        "insert into t values (1)",
    )
    monkeypatch.setattr(table_reloads, "PAUSE", 0.0)
    with process(bed) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        copy = state(running).copy
        with monkeypatch.context() as away:
            away.setattr(ddl, "marked", gone)
            marker = 'CDC_RELOAD: {"action": "EXPORT_START", "export_id": "once"}'
            bed.source.execute(f"comment on table t is '{marker}'", "insert into t values (2)")
            until(bed, running, lambda: state(running).copy != copy and state(running).phase is Phase.READY)
            assert contents(bed.destination, "t") == ["(1)", "(2)"]
            assert bed.source.query(COMMENT) == [(marker,)]
        until(bed, running, lambda: bed.source.query(COMMENT) == [("its own",)])

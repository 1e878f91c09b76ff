"""A destination that lacks what it had: it goes on from where it stands, or tables are copied anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.destinations.postgres.target import PostgresTarget
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.errors import ConnectionFailed
from penstock.model.phases import Phase
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.pipeline.running import Running, configuration, contents, running, to_postgres
from tests.pipeline.stepping import Bed
from tests.pipeline.test_stream_start import started
from tests.pipeline.test_table_reloads import ask, state, until

T = TableName("public", "t")


class Backup:
    """A copy of a database, to be put in its place as often as one likes."""

    def __init__(self, database: Database) -> None:
        self.database, self.name = database, f"{database.name}_backup"
        self._server = database.server
        self._replace(self.name, database.name)

    def restore(self) -> None:
        self._replace(self.database.name, self.name)

    def _replace(self, name: str, template: str) -> None:
        """With connections shut out: PostgreSQL copies no database that is in use."""
        self._server.execute(f"alter database {template} allow_connections false")
        end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{}'"
        self._server.execute(end.format(template))
        self._server.execute(f"drop database if exists {name} with (force)")
        self._server.execute(f"create database {name} template {template}")
        self._server.execute(f"alter database {template} allow_connections true")

    def remove(self) -> None:
        self._server.execute(f"drop database if exists {self.name}")


@pytest.fixture
def restored(server: PostgresServer, destination: Database) -> Iterator[Database]:
    yield destination
    server.execute(f"drop database if exists {destination.name}_backup")


def equal(pipeline: Running, source: Database, destination: Database, *tables: str) -> None:
    pipeline.until(lambda: all(contents(source, t) == contents(destination, t) for t in tables))


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(True, id="in the spool"),
        pytest.param(False, id="not in the spool", marks=pytest.mark.slow),
    ],
)
def test_a_destination_that_was_restored_is_brought_to_where_the_source_is(
    spark: SparkSession, source: Database, restored: Database, tmp_path: Path, kept: bool
) -> None:
    source.execute("create table t (id int primary key)", "create table u (id int primary key, a text)")
    source.execute("insert into t values (1)", "insert into u values (1, 'first')")
    file = configuration(tmp_path, source, to_postgres(restored))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        source.execute("insert into t values (2)")
        equal(pipeline, source, restored, "t", "u")
        copies = {name: state.copy for name, state in pipeline.tables().items()}
        backup = Backup(restored)
        with closing(Manifest.open(tmp_path / "spool" / "test" / "source")) as manifest:
            position = manifest.consumers()["copy"]
            if kept:  # somebody who is slower
                manifest.register("slow", position)
            source.execute("insert into t values (3)", "update u set a = 'changed'")
            equal(pipeline, source, restored, "t", "u")
            source.execute("insert into t values (4)")
            equal(pipeline, source, restored, "t", "u")
            if not kept:
                pipeline.until(lambda: manifest.retired > position)
        backup.restore()
        source.execute("insert into t values (5)")
        equal(pipeline, source, restored, "t", "u")
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        assert {name: state.copy == copies[name] for name, state in pipeline.tables().items()} == {
            "public.t": kept,
            "public.u": kept,
        }
        # What was followed since the backup is not there either.
        source.execute("alter table u add b int default 7", "insert into u values (2, 'new', 8)")
        equal(pipeline, source, restored, "t", "u")
    backup.restore()
    with running(file, spark) as pipeline:
        equal(pipeline, source, restored, "t", "u")
        source.execute("insert into u values (3, 'newer', 9)", "delete from t where id = 1")
        equal(pipeline, source, restored, "t", "u")
        pipeline.until_phase(Phase.READY, "public.t", "public.u")


def test_an_idle_destination_that_was_made_anew_is_filled_again(
    spark: SparkSession, source: Database, destination: Database, server: PostgresServer, tmp_path: Path
) -> None:
    source.execute("create table t (id int primary key)", "insert into t values (1)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        server.execute(f"drop database {destination.name} with (force)")
        server.execute(f"create database {destination.name}")
        equal(pipeline, source, destination, "t")
        pipeline.until_phase(Phase.READY, "public.t")


@pytest.fixture
def backups() -> Iterator[list[Backup]]:
    """To be removed in the end."""
    made: list[Backup] = []
    yield made
    for backup in made:
        backup.remove()


def test_what_fails_while_tables_are_looked_at_keeps_none_from_being_copied_anew(
    bed: Bed, backups: list[Backup], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.source.execute("create table t (id int primary key)", "insert into t values (1), (2)")
    with started(bed, bed.config) as pipeline:
        until(bed, pipeline, lambda: state(pipeline).phase is Phase.READY)
        with closing(Manifest.open(bed.spool)) as manifest:
            manifest.register("slow", manifest.consumers()["copy"])
        bed.destination.execute("delete from t where id = 1")
        backups.append(Backup(bed.destination))
        ask(pipeline, "reload")
        until(bed, pipeline, lambda: not bed.delivered.difference([T]))
        bed.source.execute("insert into t values (3)")
        until(bed, pipeline, lambda: not bed.delivered.difference([T]))
    backups[0].restore()
    hold = PostgresTarget.hold

    def fails_once(*_: Any) -> None:
        monkeypatch.setattr(PostgresTarget, "hold", hold)
        raise ConnectionFailed("the server is gone")

    monkeypatch.setattr(PostgresTarget, "hold", fails_once)
    with started(bed, bed.config) as pipeline:
        until(bed, pipeline, lambda: not bed.delivered.difference([T]))
        until(bed, pipeline, lambda: state(pipeline).phase is Phase.READY)
        with closing(Manifest.open(bed.spool)) as manifest:
            assert manifest.consumers().keys() == {"copy", "slow"}
    assert PostgresTarget.hold is hold, "it has failed"

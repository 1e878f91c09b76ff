"""Who wrote to a table before its changes were kept keeps its copy waiting, and no other table's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.model.phases import Phase
from penstock.pipeline import awaited_writers
from penstock.pipeline.status import collect as status
from penstock.postgres.writers import writers
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.pipeline.stepping import Bed
from tests.pipeline.test_table_reloads import process, until


def test_a_table_that_waits_for_a_writer_is_told_and_others_are_copied(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id int primary key)")
    one = {"workers": 1}
    file = configuration(tmp_path, source, to_postgres(destination), initial_copy=one)
    with running(file, spark) as pipeline, source.connect() as writer, capture_logs() as lines:
        pipeline.until_phase(Phase.READY, "public.t")
        source.execute("create table a (id int primary key)", "create table b (id int primary key, v text)")
        with writer.transaction():
            writer.execute("insert into a values (1)")
            source.execute("insert into b select g, repeat('b', 1000) from generate_series(1, 1000) g")
            pipeline.until_phase(Phase.READY, "public.b")
            (told,) = pipeline.until(
                lambda: [t for t in status(pipeline.config)["destinations"][0]["tables"] if t["error"]]
            )
            assert (told["table"], told["phase"], told["error"]["kind"]) == ("public.a", "init", "TableBusy")
            assert told["error"]["reason"].endswith(f"must end first: process {writer.info.backend_pid}")
        pipeline.until_phase(Phase.READY, "public.a")
        assert contents(destination, "a") == ["(1)"]
        assert pipeline.tables()["public.a"].error is None
    assert [line["table"] for line in lines if line["event"] == "table waits to be copied"] == ["public.a"]


def test_many_tables_that_wait_are_asked_about_together_and_seldom(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of locks is one that all sessions share."""
    clock, asked = SimpleNamespace(now=0.0), list[int]()

    def count(connection: Any, tables: Any) -> Any:
        asked.append(len(tables))
        return writers(connection, tables)

    monkeypatch.setattr(awaited_writers, "writers", count)
    monkeypatch.setattr(awaited_writers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    names = [f"t{n}" for n in range(20)]
    bed.source.execute(*(f"create table {name} (id integer primary key)" for name in names))
    with bed.source.connect() as writer, process(bed) as running, writer.transaction():
        for name in names:
            writer.execute(f"insert into {name} values (1)".encode())
        waiting = running.copier._awaited["source"]
        until(bed, running, lambda: len(waiting._waiting) == len(names))
        asked.clear()
        for _ in range(40):
            clock.now += 0.05
            running.round()
        assert 0 < len(asked) <= 12, "in two seconds"
        assert set(asked) == {len(names)}

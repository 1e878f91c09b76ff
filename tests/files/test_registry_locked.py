"""The registry is in the source's database, where others lock its tables: that is told, and stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.destinations.files import source_records
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration, running
from tests.pipeline.test_errors import status


def test_a_lock_on_the_registry_is_told_and_stopping_does_not_wait_for_it(
    spark: SparkSession, source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_records, "LOCK_MILLISECONDS", 100)
    source.execute("create table t (id int primary key)")
    file = configuration(tmp_path, source, to_files(tmp_path))
    files = "select count(*) from cdc_registry.file_log where file_type = 'streaming'"
    with source.connect() as other, other.transaction():
        with running(file, spark) as pipeline:
            pipeline.until_phase(Phase.READY, "public.t")
            other.execute("lock table cdc_registry.file_log in share mode")
            source.execute("insert into t values (1)")
            told = pipeline.until(lambda: status(file)["destinations"][0]["streams"][0]["error"])
            assert told["kind"] == "DestinationUnready"
        assert source.query(files) == [(0,)]
    with running(file, spark) as pipeline:
        pipeline.until(lambda: source.query(files) == [(1,)])

"""Random workloads, schema changes among them, end with source and destination equal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, running, to_postgres
from tests.scenario import Workload


def scenario(folder: Path, source: Database, destination: Database, **options: str) -> Path:
    replication = {"publication_name": "scenario", "create_publication": False}
    sources = [{"name": "source", "dsn": source.dsn, "replication": replication}]
    return configuration(folder, source, to_postgres(destination, **options), sources=sources)


@pytest.mark.every_server
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_random_workload_arrives(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, seed: int
) -> None:
    workload = Workload(source, seed).create()
    workload.run(30)
    with running(scenario(tmp_path, source, destination), spark) as pipeline:
        # A slot that is made beside schema changes can be one that the server fails to decode for.
        pipeline.until(pipeline.tables)
        with workload.running(writers=2):
            pipeline.until(lambda: any(s.phase is Phase.READY for s in pipeline.tables().values()))
            time.sleep(5)
        workload.run_for(2, writers=1)
        pipeline.until_equal(source, destination, lambda: workload.tables)

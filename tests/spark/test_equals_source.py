"""Random transactions through the whole way, captures killed, the query restarted: equal, in order."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.capture.launch import CaptureProcess
from penstock.demo.run import changes_of
from penstock.spool.changes import Change
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import eventually, running, spec_for
from tests.checker import Ledger, Replica
from tests.scenario import Workload

PAUSE = 0.02
"""Seconds between the transactions of a writer: how much is compared does not hang on how long all takes."""


def follow(spark: SparkSession, spool: Path, folder: Path, *, available_now: bool = False) -> StreamingQuery:
    changes = spark.readStream.format("postgres_cdc").option("spool", str(spool)).load()
    writer = (
        changes.writeStream.format("parquet")
        .option("path", str(folder / "changes"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return writer.trigger(availableNow=True).start() if available_now else writer.start()


def stop(query: StreamingQuery, folder: Path) -> None:
    """Not before its first batch: one that is stopped while it writes its first offset leaves a checkpoint
    that Spark itself refuses (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)."""
    eventually((folder / "checkpoint" / "commits" / "0").exists)
    query.stop()


def written(spark: SparkSession, spool: Path, folder: Path) -> list[Change]:
    with closing(Manifest.open(spool)) as manifest:
        schemas = manifest.schemas()
    rows = spark.read.parquet(str(folder / "changes")).orderBy("commit_lsn", "seq")
    return list(changes_of(rows.toArrow(), schemas))


def check_through_spark(spark: SparkSession, database: Database, folder: Path, seed: int, kills: int) -> None:
    workload = Workload(database, seed).create("p")
    conninfo = make_conninfo(database.dsn, options="-c logical_decoding_work_mem=64kB")
    spec = spec_for(database, folder / "spool", conninfo=conninfo, ack="destination", consumers=("spark",))
    ledger = Ledger(database, "p").create()
    chance = random.Random(seed)
    with running(spec):
        pass
    with workload.running(writers=2, pause=PAUSE):
        query = follow(spark, spec.spool, folder)
        for kill in range(kills):
            process = CaptureProcess(spec)
            process.wait_until_captured()
            time.sleep(chance.uniform(0.2, 1.2))
            process.kill()
            if kill == kills // 2:
                stop(query, folder)
                query = follow(spark, spec.spool, folder)
    with running(spec) as capture:
        capture.until_past(database)
        stop(query, folder)
        follow(spark, spec.spool, folder, available_now=True).awaitTermination()
    changes = written(spark, spec.spool, folder)
    assert len(changes) > 100
    difference = ledger.difference(changes)
    assert not difference, difference
    difference = Replica(changes).difference(database, workload.tables)
    assert not difference, difference


def test_what_spark_reads_through_kills_equals_the_source(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    check_through_spark(spark, database, tmp_path, seed=11, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(21, 24))
def test_what_spark_reads_through_many_kills_equals_the_source(
    spark: SparkSession, database: Database, tmp_path: Path, seed: int
) -> None:
    check_through_spark(spark, database, tmp_path, seed, kills=12)

"""A stream that lacks what it had: who reads it is told, and ends up with what the source has."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.consumer import ConsumerAccess, Mirror
from penstock.embedded.nats import USER, NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import Running, configuration, running


class Backup:
    """What the server has on its disk, to be put back."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._there, self._kept = server.folder / "jetstream", server.folder / "backup"
        server.stop()
        shutil.copytree(self._there, self._kept)
        server.start()

    def restore(self) -> None:
        self._server.stop()
        shutil.rmtree(self._there)
        shutil.copytree(self._kept, self._there)
        self._server.start()


class Reader:
    """A mirror that now and then catches up."""

    def __init__(self, server: NatsServer, source: Database, path: Path) -> None:
        self._access = ConsumerAccess((server.url,), USER, server.password)
        self._source = source
        self._path = path

    def equals_source(self) -> bool:
        asyncio.run(Mirror(self._access, self._path).run(once=True))
        with closing(sqlite3.connect(self._path)) as connection:
            here = connection.execute("select id from t order by id").fetchall()
        return here == self._source.query("select id from t order by id")


def has_arrived(pipeline: Running, server: NatsServer, id: int) -> None:
    def ids() -> list[int]:
        return [message.body["data"]["id"] for message in read_all(server, subject="cdc.t.insert")]

    pipeline.until(lambda: id in ids())


@pytest.mark.parametrize(
    ("runs", "delivery"),
    [
        pytest.param(True, "ids", id="while it runs-ids", marks=pytest.mark.slow),
        pytest.param(True, "atomic", id="while it runs-atomic"),
        pytest.param(False, "ids", id="stopped-ids"),
        pytest.param(False, "atomic", id="stopped-atomic", marks=pytest.mark.slow),
    ],
)
def test_a_stream_that_was_restored_from_a_backup(
    spark: SparkSession, database: Database, own_nats: NatsServer, tmp_path: Path, delivery: str, runs: bool
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    file = configuration(tmp_path, database, to_nats(own_nats, delivery=delivery))
    reader = Reader(own_nats, database, tmp_path / "mirror.db")
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        database.execute("insert into t values (2)")
        pipeline.until(reader.equals_source)
        backup = Backup(own_nats)
        database.execute("insert into t values (3)")
        has_arrived(pipeline, own_nats, 3)
        database.execute("insert into t values (4)")
        has_arrived(pipeline, own_nats, 4)
        if runs:
            backup.restore()
            database.execute("insert into t values (5)")
            pipeline.until(reader.equals_source)
    if not runs:
        backup.restore()
    with running(file, spark) as pipeline:
        database.execute("insert into t values (6)")
        pipeline.until(reader.equals_source)
        resets = len(read_all(own_nats, subject="cdc.t.reset"))
    with running(file, spark) as pipeline:  # what is whole is left alone
        database.execute("insert into t values (7)")
        has_arrived(pipeline, own_nats, 7)
        assert reader.equals_source()
        assert len(read_all(own_nats, subject="cdc.t.reset")) == resets

"""A source that fails over to a standby that lagged, which the stream has waited for, and a copy has not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.capture.heartbeat import mark
from penstock.embedded.nats import NatsServer
from penstock.embedded.postgres import PostgresServer
from penstock.model.phases import Phase
from penstock.pipeline import snapshot_maker
from penstock.postgres.connection import connect
from penstock.state.store import Store
from tests.bed import Database
from tests.capture.standby import promote, standby_of
from tests.nats.reading import read_all
from tests.nats.test_pipeline import request, to_nats
from tests.pipeline.running import Running, configuration, contents, running, to_postgres

SLOT = "penstock_test_source"
SYNCED = "select 1 from pg_replication_slots where slot_name = %s and synced and not temporary"


@pytest.fixture
def primary(own_database: Database) -> Database:
    with own_database.connect() as connection:
        if connection.info.server_version < 170000:
            pytest.skip("failover slots came with PostgreSQL 17")
    return own_database


def following(source: Database) -> dict[str, Any]:
    return {"sources": [{"name": "source", "dsn": source.dsn, "replication": {"failover": True}}]}


def let_lag(primary: Database, standby: PostgresServer) -> None:
    """The stream waits for a standby that is away."""
    primary.execute("alter system set synchronized_standby_slots = 'standby'", "select pg_reload_conf()")
    standby.stop()


def ask(pipeline: Running, action: str, table: str) -> None:
    url = pipeline.config.state.url.get_secret_value()
    with Store.open(url, "test", exclusive=False) as store:
        store.request(action, {"tables": [table]})


def test_a_copy_of_a_server_that_is_gone_is_made_anew_from_the_one_that_took_its_place(
    spark: SparkSession, primary: Database, destination: Database, tmp_path: Path
) -> None:
    primary.execute("create table t (id int primary key, v text)", "insert into t values (0, 'kept')")
    with standby_of(primary.server, sync_replication_slots="on") as standby:
        promoted = Database(standby, primary.name)
        file = configuration(tmp_path, primary, to_postgres(destination), **following(primary))
        with running(file, spark) as pipeline:
            pipeline.until_phase(Phase.READY, "public.t")

            def is_synced() -> bool:
                with connect(primary.dsn) as connection:
                    mark(connection)
                primary.execute("select pg_log_standby_snapshot()")
                return promoted.query(SYNCED, SLOT) == [(1,)]

            pipeline.until(is_synced)
            let_lag(primary, standby)
            primary.execute(*(f"insert into t values ({n}, 'never was')" for n in range(1, 21)))
            ask(pipeline, "reload", "public.t")
            pipeline.until_phase(Phase.FINISHED_COPY, "public.t")
        assert contents(destination, "t") == ["(0,kept)"], "the stream waits for the standby"
        primary.server.stop("immediate")
        standby.start()
        promote(standby)
        promoted.execute("alter system reset synchronized_standby_slots", "select pg_reload_conf()")
        file = configuration(tmp_path, promoted, to_postgres(destination), **following(promoted))
        promoted.execute(*(f"insert into t values ({n}, 'is there')" for n in range(11, 61)))
        with running(file, spark) as pipeline:
            pipeline.until_phase(Phase.READY, "public.t")
            promoted.execute("insert into t values (100, 'later')")
            pipeline.until(lambda: "(100,later)" in contents(destination, "t"))
            assert contents(destination, "t") == contents(promoted, "t")


def test_a_snapshot_is_made_once_the_stream_has_come_to_where_it_was_taken(
    spark: SparkSession,
    primary: Database,
    nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later the slot is lost if a server takes over that has not come as far, and consumers are told."""
    primary.execute("create table t (id int primary key)", "insert into t values (1)")
    with standby_of(primary.server) as standby:
        file = configuration(tmp_path, primary, to_nats(nats), **following(primary))
        with running(file, spark) as pipeline, capture_logs() as lines:
            pipeline.until_phase(Phase.READY, "public.t")
            let_lag(primary, standby)
            primary.execute("insert into t values (2)")
            with monkeypatch.context() as impatient:
                impatient.setattr(snapshot_maker, "CAPTURE", 1.0)
                asyncio.run(request(nats, "t"))
                pipeline.until(lambda: [line for line in lines if line["event"] == "snapshot failed"])
            assert not read_all(nats, "INIT", "init.meta.t")
            standby.start()
            asyncio.run(request(nats, "t"))
            (meta,) = pipeline.until(lambda: read_all(nats, "INIT", "init.meta.t"))
            assert meta.body["row_count"] == 2

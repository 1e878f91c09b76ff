"""What stops a table, or a destination, stops nothing else; and goes on when it is mended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.config import load
from penstock.destinations.postgres.table import trust
from penstock.embedded.postgres import PostgresServer
from penstock.model.errors import StateInUse
from penstock.model.phases import Phase
from penstock.pipeline.pipeline import Pipeline
from tests.bed import Database, started_server
from tests.pipeline.running import configuration, contents, running, to_postgres

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )


def status(file: Path) -> dict[str, Any]:
    done = penstock("status", file, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_lock_on_a_table_is_waited_for_and_stopping_does_not_wait_for_it(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """To publish a table takes a lock on it: it is left out until that can be had."""
    source.execute("create table t (id integer primary key)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with source.connect() as other, other.transaction():
        other.execute("lock table t in access exclusive mode")
        with capture_logs() as logged, running(file, spark) as pipeline:
            left = "public.t is left out: somebody holds a lock on it"
            pipeline.until(lambda: any(line["event"].startswith(left) for line in logged))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")


def test_statements_that_are_cancelled_are_tried_again(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """By somebody, or by a limit of the role's, at the start as well as later."""
    source.execute("create table t (id integer primary key)")
    hurried = {"name": "source", "dsn": make_conninfo(source.dsn, options="-c statement_timeout=1ms")}
    file = configuration(tmp_path, source, to_postgres(destination), sources=[hurried])
    cancel = """
        select count(pg_cancel_backend(pid)) from pg_stat_activity
        where datname = current_database() and state = 'active' and backend_type = 'client backend'
          and pid <> pg_backend_pid()
    """
    with source.connect() as other, running(file, spark) as pipeline:

        def cancelled(times: int) -> None:
            end = time.monotonic() + 60
            while times > 0:
                assert time.monotonic() < end
                times -= other.execute(cancel).fetchall()[0][0]

        cancelled(2)
        pipeline.until_phase(Phase.READY, "public.t")
        cancelled(3)
        source.execute("insert into t values (1)")
        pipeline.until(lambda: contents(destination, "t") == ["(1)"])


def test_a_refused_row_stops_its_table_alone_until_it_is_retried(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table order_line (id integer primary key, label text)",
        "create table other (id integer primary key)",
    )
    destination.execute(
        "create table order_line (id integer primary key, label varchar(5) check (label <> 'bad'))"
    )
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.order_line", "public.other")
        source.execute(
            "insert into order_line values (1, 'good')",
            "insert into order_line select n, 'x' from generate_series(2, 500) n",
            "update order_line set label = 'bad' where id = 321",
        )
        pipeline.until_phase(Phase.ERRORED, "public.order_line")
        source.execute("insert into other values (1)", "delete from order_line where id = 7")
        pipeline.until(lambda: contents(destination, "other") == ["(1)"])
        (told,) = [t for t in status(file)["destinations"][0]["tables"] if t["error"]]
        assert (told["table"], told["phase"]) == ("public.order_line", "errored")
        assert "321" in told["error"]["where"]["key"]
        assert "order_line_label_check" in told["error"]["reason"]
        assert "penstock retry" in told["error"]["remedy"]
        assert "321" in penstock("status", file).stdout

        assert penstock("retry", file, "public.other").returncode == 1
        destination.execute("alter table order_line drop constraint order_line_label_check")
        assert penstock("retry", file, "public.order_*").returncode == 0
        pipeline.until(lambda: contents(destination, "order_line") == contents(source, "order_line"))
        source.execute("insert into order_line values (1000, 'much too long')")
        pipeline.until_phase(Phase.ERRORED, "public.order_line")
        destination.execute("alter table order_line alter label type text")
        assert penstock("retry", file, "order_line").returncode == 0
        pipeline.until(lambda: contents(destination, "order_line") == contents(source, "order_line"))
        pipeline.until_phase(Phase.READY, "public.order_line")
        assert pipeline.tables()["public.order_line"].error is None


def test_a_destination_that_is_down_holds_up_nobody(
    spark: SparkSession, source: Database, destination: Database, server: PostgresServer, tmp_path: Path
) -> None:
    far = started_server(server.bin)
    try:
        source.execute("create table t (id integer primary key)", "insert into t values (1)")
        other = {"name": "far", "type": "postgres", "dsn": far.dsn()}
        file = configuration(
            tmp_path,
            source,
            to_postgres(destination),
            other,
            spool={"path": str(tmp_path / "spool"), "ack": "spool"},
        )
        with running(file, spark) as pipeline:
            pipeline.until(lambda: contents(Database(far, "postgres"), "t") == ["(1)"])
            far.stop()
            source.execute("insert into t select n from generate_series(2, 100) n")
            pipeline.until(lambda: len(contents(destination, "t")) == 100)
            ((wal,),) = source.query("select pg_current_wal_insert_lsn()")
            confirmed = "select confirmed_flush_lsn >= %s from pg_replication_slots where database = %s"
            pipeline.until(lambda: source.query(confirmed, wal, source.name) == [(True,)])
            far.start()
            pipeline.until(lambda: len(contents(Database(far, "postgres"), "t")) == 100)
            streams = [d["streams"][0] for d in status(file)["destinations"]]
            assert all(stream["position"] for stream in streams)
    finally:
        far.remove()


def test_an_idle_destination_that_is_read_only_is_waited_for(
    spark: SparkSession, source: Database, destination: Database, server: PostgresServer, tmp_path: Path
) -> None:
    """Its stream has nothing to deliver: that makes no difference."""
    source.execute("create table t (id integer primary key)", "insert into t values (1)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until(lambda: contents(destination, "t") == ["(1)"])
        server.execute(f"alter database {destination.name} set default_transaction_read_only = on")
        server.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{destination.name}'"
        )
        source.execute("create table elsewhere ()", "select pg_logical_emit_message(false, 'x', 'y')")
        waits = pipeline.until(lambda: status(file)["destinations"][0]["streams"][0]["error"], 30)
        assert waits["kind"] == "DestinationUnready"
        server.execute(f"alter database {destination.name} reset default_transaction_read_only")
        server.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{destination.name}'"
        )
        source.execute("insert into t values (2)")
        pipeline.until(lambda: contents(destination, "t") == ["(1)", "(2)"])


def test_a_reader_who_keeps_a_truncate_waiting_delays_that_table_alone_and_for_as_long_as_he_reads(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust, "LONG", "100ms")
    source.execute(
        "create table t (id integer primary key)",
        "create table u (id integer primary key)",
        "insert into t values (1)",
    )
    often = {"initial": "10ms", "max": "100ms", "attempts": 2}
    file = configuration(tmp_path, source, to_postgres(destination), retry=often)
    with running(file, spark) as pipeline, destination.connect() as reader:
        pipeline.until_phase(Phase.READY, "public.t", "public.u")
        with reader.transaction():
            reader.execute("select from t")
            source.execute("truncate t")
            pipeline.until(lambda: pipeline.tables()["public.t"].attempts > 4)
            source.execute("insert into u values (1)")
            pipeline.until(lambda: contents(destination, "u") == ["(1)"])
            (told,) = [t for t in status(file)["destinations"][0]["tables"] if t["error"]]
            assert (told["table"], told["error"]["kind"]) == ("public.t", "DestinationBusy")
            source.execute("alter table u add a int")
            reader.execute("select from u")
            source.execute("insert into u values (2, 2)", "insert into t values (2)")
            pipeline.until(lambda: pipeline.tables()["public.u"].attempts > 4)
        pipeline.until(lambda: contents(destination, "t") == ["(2)"])
        pipeline.until(lambda: contents(destination, "u") == ["(1,)", "(2,2)"])


@pytest.mark.parametrize("consistency", ["batch", pytest.param("table", marks=pytest.mark.slow)])
def test_who_reads_many_tables_that_are_truncated_delays_no_other(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, consistency: str
) -> None:
    """As a backup of the destination does."""
    many = [f"t{n}" for n in range(15)]
    source.execute("create table u (id integer primary key)")
    source.execute(*(f"create table {t} (id integer primary key); insert into {t} values (1)" for t in many))
    file = configuration(tmp_path, source, to_postgres(destination, consistency=consistency))
    with running(file, spark) as pipeline, destination.connect() as reader:
        pipeline.until_phase(Phase.READY, "public.u", *(f"public.{t}" for t in many))
        with reader.transaction():
            for table in many:
                reader.execute(f"select from {table}".encode())
            source.execute(f"truncate {', '.join(many)}")
            pipeline.until(lambda: Phase.ERRORED in {state.phase for state in pipeline.states()})
            source.execute("insert into u values (1)")
            pipeline.until(lambda: contents(destination, "u") == ["(1)"], seconds=30)
            pipeline.until_phase(Phase.ERRORED, *(f"public.{t}" for t in many))
            source.execute("insert into u values (2)")
            pipeline.until(lambda: contents(destination, "u") == ["(1)", "(2)"], seconds=30)
        pipeline.until_phase(Phase.READY, *(f"public.{t}" for t in many))
        assert [contents(destination, t) for t in many] == [[]] * 15


def test_a_second_pipeline_is_refused_and_told_who_runs(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        with pytest.raises(StateInUse, match="process"):
            Pipeline(load(file), spark=spark).run()
        assert status(file)["running"]
    assert status(file)["running"] is None


def test_teardown_removes_everything_but_the_data(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)", "insert into t values (1)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        assert penstock("teardown", file, "--yes").returncode == 1
    done = penstock("teardown", file, "--yes")
    assert done.returncode == 0, done.stderr
    assert source.query("select 1 from pg_replication_slots where database = %s", source.name) == []
    assert source.query("select 1 from pg_publication") == []
    assert not (tmp_path / "spool" / "test" / "source").exists()
    assert contents(destination, "t") == ["(1)"]
    assert status(file)["destinations"][0]["tables"] == []

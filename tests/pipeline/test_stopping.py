"""`penstock run` as people start and stop it: what it waits for, what it prints, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database
from tests.pipeline.running import configuration, contents, to_postgres

RUN = [sys.executable, "-c", "from penstock.cli import main; main()", "run"]
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[(info|warning) *\] .*")


class Process:
    """A pipeline in a session of its own, as a terminal would have it."""

    def __init__(self, file: Path) -> None:
        self._log = file.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*RUN, str(file)], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until(self, check: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not check():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def until_said(self, *words: str) -> None:
        self.until(lambda: all(word in self.said for word in words))

    def interrupt(self) -> None:
        """Ctrl-C: everything that hangs on the terminal gets it."""
        os.killpg(self._process.pid, signal.SIGINT)

    def terminate(self) -> None:
        self._process.terminate()

    def end_quietly(self, send: Callable[[Process], None]) -> None:
        """It ends with 0, having printed nothing but log lines, and nothing that it started still runs; the
        first JVM of an installation writes an archive of its classes when all else is over."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        send(self)
        assert self._process.wait(60) == 0, self.said
        assert [line for line in self.said.splitlines() if not LINE.fullmatch(line)] == []
        _, alive = psutil.wait_procs(started, timeout=30)
        assert alive == []

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def started(file: Path) -> Iterator[Process]:
    process = Process(file)
    try:
        yield process
    finally:
        process.kill()


def test_ctrl_c_while_a_source_is_waited_for_ends_it_at_once(
    own_server: PostgresServer, destination: Database, tmp_path: Path
) -> None:
    file = configuration(tmp_path, Database(own_server, "postgres"), to_postgres(destination))
    own_server.stop()
    with started(file) as process:
        process.until_said("waiting")
        process.end_quietly(Process.interrupt)
        assert "spark" not in process.said.lower()
        assert not (tmp_path / "spool" / "test" / "spark.log").exists(), "Spark was never started"


def test_a_wrong_password_ends_it_at_once(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.execute("create role cdc login replication password 'right'")
    (own_server.data / "pg_hba.conf").write_text(
        "host all cdc 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"
    )
    own_server.execute("select pg_reload_conf()")
    dsn = f"postgresql://cdc:hush@127.0.0.1:{own_server.port}/postgres"
    here = Database(own_server, "postgres")
    file = configuration(tmp_path, here, to_postgres(here), sources=[{"name": "source", "dsn": dsn}])
    done = subprocess.run([*RUN, str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert 'password authentication failed for user "cdc"' in line
    assert "hush" not in done.stderr + done.stdout


def test_it_stops_while_the_slot_waits_for_a_transaction_and_leaves_no_slot(
    source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)")
    file = configuration(tmp_path, source, to_postgres(destination))
    with source.connect() as writer:
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        with started(file) as process:
            slots = "select 1 from pg_replication_slots where database = %s"
            process.until(lambda: source.query(slots, source.name))
            process.end_quietly(Process.terminate)
        assert source.query(slots, source.name) == []


def test_it_stops_while_a_reader_at_the_destination_keeps_a_truncate_waiting(
    source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)", "insert into t values (1)")
    often = {"initial": "10ms", "max": "100ms"}
    file = configuration(tmp_path, source, to_postgres(destination), retry=often)
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with started(file) as process:
        process.until(lambda: contents(destination, "t") == ["(1)"])
        with destination.connect() as reader, reader.transaction():
            reader.execute("select from t")
            source.execute("truncate t")
            process.until(lambda: re.search("errored .*table=public.t .*lock timeout", process.said))
            process.until(lambda: destination.query(waiting))
            process.end_quietly(Process.terminate)


@pytest.mark.slow
def test_it_waits_for_its_source_and_stops_quietly_while_it_copies_and_while_it_streams(
    own_database: Database, destination: Database, tmp_path: Path
) -> None:
    own_database.execute(
        "create table small (id integer primary key)",
        "create table large (id integer primary key, body text)",
        "insert into large select n, repeat(md5(n::text), 8) from generate_series(1, 200000) n",
    )
    file = configuration(tmp_path, own_database, to_postgres(destination))
    own_database.server.stop()
    with started(file) as process:
        process.until_said("waiting", "again_in")
        own_database.server.start()
        process.until(lambda: re.search("data_sync .*large", process.said))
        process.end_quietly(Process.interrupt)
    assert not re.search("finished_copy .*large", process.said), "the copy was over too soon to interrupt it"
    with started(file) as process:
        process.until(lambda: re.search("ready .*large", process.said))
        own_database.execute("insert into small select generate_series(1, 20000)")
        process.end_quietly(Process.terminate)
    assert len(contents(destination, "large")) == 200000

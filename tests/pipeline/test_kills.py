"""Whatever is killed on the way, source and destination end up equal.

Killed, at random: the capture, the driver with everything that hangs on it, the Python workers (and, on a
cluster, the executors), the source's server, the destination's. The workload goes on all the while.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.destinations.postgres.target import PostgresTarget
from penstock.destinations.protocol import TableCopy
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableId
from penstock.postgres.snapshot import Snapshot
from tests.bed import Database, fresh_database, started_server
from tests.capture.running import excuse_the_server
from tests.pipeline.running import configuration, contents, difference, running, to_postgres
from tests.scenario import Workload

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
RUN = [sys.executable, "-c", "from penstock.cli import main; main()", "run"]


@pytest.fixture
def far_server(server: PostgresServer) -> Iterator[PostgresServer]:
    """A second server for this test alone."""
    own = started_server(server.bin)
    yield own
    own.remove()


@pytest.fixture
def far_database(far_server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(far_server)


class Supervised:
    """`penstock run`, started again when we killed it; that it ends by itself is a failure."""

    def __init__(self, file: Path) -> None:
        self._command = [*RUN, str(file), "--verbose"]
        self._log = file.with_suffix(".log").open("ab")
        self._file = file
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)

    def check(self) -> None:
        if self._process.poll() is not None:
            for manifest in self._file.parent.glob("spool/*/*/manifest.db"):
                excuse_the_server(manifest.parent)
            pytest.fail(f"the pipeline ended by itself with {self._process.returncode}:\n{self.said()}")

    def said(self) -> str:
        return self._file.with_suffix(".log").read_text(errors="replace")[-6000:]

    def children(self, *words: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = child.cmdline()
                if any(word in command for word in words):
                    found.append(child)
        return found

    def kill_child(self, *words: str) -> bool:
        found = self.children(*words)
        for child in found[-1:]:
            with contextlib.suppress(psutil.Error):
                child.kill()
        return bool(found)

    def kill(self) -> bool:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.start()
        return True

    def stop(self) -> int:
        self._process.terminate()
        try:
            code = self._process.wait(60)
        finally:
            if self._process.poll() is None:
                self._process.kill()
            self._log.close()
        return code


def crash(server: PostgresServer) -> bool:
    server.kill()
    server.start()
    return True


def begun(source: Database) -> tuple[Random, Workload, list[dict[str, object]]]:
    """Chance, tables that it made, and the source for a configuration."""
    random = Random(os.environ.get("PENSTOCK_TEST_SEED") or time.time_ns())
    workload = Workload(source, seed=random.randrange(1 << 30)).create()
    workload.run(50)
    replication = {"publication_name": "scenario", "create_publication": False}
    return random, workload, [{"name": "source", "dsn": source.dsn, "replication": replication}]


def survive(
    pipeline: Supervised,
    workload: Workload,
    differs: Callable[[], str],
    random: Random,
    kills: int,
    also: Mapping[str, Callable[[], bool]],
    meanwhile: Callable[[], None] = lambda: None,
) -> Counter[str]:
    """Kill something now and then while the workload goes on; in the end all is equal. What was killed: where
    there are more kills than victims, each of them, though some are hardly ever there on a busy machine."""
    source = workload.database
    victims: dict[str, Callable[[], bool]] = {
        "capture": lambda: pipeline.kill_child("penstock.capture"),
        "driver": pipeline.kill,
        "worker": lambda: pipeline.kill_child("penstock.spark.daemon", "pyspark.daemon"),
        "source": lambda: crash(source.server),
        **also,
    }
    done: Counter[str] = Counter()
    try:
        with workload.running(writers=2):
            while done.total() < kills or (kills > len(victims) and len(done) < len(victims)):
                time.sleep(random.uniform(1, 6))
                pipeline.check()
                meanwhile()
                left = [victim for victim in victims if done.total() < kills or victim not in done]
                victim = random.choice(left)
                if victims[victim]():
                    done[victim] += 1
        end = time.monotonic() + 180
        while told := differs():
            pipeline.check()
            assert time.monotonic() < end, told
            meanwhile()
            time.sleep(0.5)
    finally:
        code = pipeline.stop()
    assert code == 0, pipeline.said()
    return done


def run_through_kills(
    source: Database, destination: Database, folder: Path, kills: int, **sections: object
) -> Counter[str]:
    random, workload, sources = begun(source)
    pipeline = Supervised(
        configuration(folder, source, to_postgres(destination), sources=sources, **sections)
    )
    also: dict[str, Callable[[], bool]] = {
        "executor": lambda: pipeline.kill_child(EXECUTOR),
        "destination": lambda: crash(destination.server),
    }
    differs = partial(difference_of, workload, destination)
    return survive(pipeline, workload, differs, random, kills, also)


def difference_of(workload: Workload, into: Database) -> str:
    return difference(workload.database, into, workload.tables)


def test_a_few_kills(own_database: Database, far_database: Database, tmp_path: Path) -> None:
    assert run_through_kills(own_database, far_database, tmp_path, kills=3).total() == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills(own_database: Database, far_database: Database, tmp_path: Path) -> None:
    spark = {"master": "local-cluster[2,1,1024]"}
    done = run_through_kills(own_database, far_database, tmp_path, kills=50, spark=spark)
    assert done.total() >= 50
    assert len(done) == 6


def test_a_crash_right_after_a_copy_loses_no_transaction(
    own_server: PostgresServer,
    own_database: Database,
    destination: Database,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the snapshot saw end may be in no WAL that survived: PostgreSQL then gives its number again."""
    own_server.execute("alter system set wal_writer_delay = '10s'")
    own_server.execute("select pg_reload_conf()")
    own_database.execute("create table t (id integer primary key)")

    def opened(conninfo: str, table: TableId) -> Snapshot:
        with psycopg.connect(own_database.dsn) as connection:
            connection.execute("insert into t values (0)")
            connection.rollback()
        return open_snapshot(conninfo, table)

    def copied(target: PostgresTarget, copy: TableCopy) -> int:
        rows = copy_table(target, copy)
        if not crashed.is_set():
            crash(own_server)
            own_database.execute(*(f"insert into t values ({n})" for n in range(1, 4)))
            crashed.set()
        return rows

    crashed = threading.Event()
    open_snapshot, copy_table = Snapshot.open, PostgresTarget.copy_table
    monkeypatch.setattr(Snapshot, "open", opened)
    monkeypatch.setattr(PostgresTarget, "copy_table", copied)
    with running(configuration(tmp_path, own_database, to_postgres(destination)), spark) as pipeline:
        pipeline.until(crashed.is_set)
        pipeline.until(lambda: contents(destination, "t") == ["(1)", "(2)", "(3)"])

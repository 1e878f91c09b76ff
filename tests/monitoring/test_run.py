"""`penstock run` with its HTTP server: what a person or a program does with a pipeline that runs."""

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

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database
from tests.monitoring.asking import Answer, Asking
from tests.pipeline.running import configuration, contents, to_postgres

RUN = [sys.executable, "-c", "from penstock.cli import main; main()", "run"]
NOTICED = 10.0
"""Seconds within which an outage shows."""


class Run:
    def __init__(self, file: Path) -> None:
        self._log = file.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*RUN, str(file), "--log-format", "logfmt"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"PENSTOCK_MONITORING__ENABLED": "true"},
            )

    def said(self) -> str:
        return self._log.read_text()

    def asking(self, which: int = 0) -> Asking:
        """The server, or the one that came after it."""
        self.until(lambda: len(self._urls()) > which)
        return Asking(self._urls()[which])

    def _urls(self) -> list[str]:
        return re.findall(r"event=dashboard url=(\S+)", self.said())

    def until(self, check: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not check():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)


@contextmanager
def run(file: Path) -> Iterator[Run]:
    started = Run(file)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def failing(answer: Answer) -> set[str]:
    return {each["name"] for each in answer.document["conditions"] if not each["ok"]}


def phase(answer: Answer, table: str) -> str:
    tables = answer.document["destinations"][0]["tables"]
    return next((each["phase"] for each in tables if each["table"] == table), "")


def test_a_pipeline_is_seen_and_led(own_server: PostgresServer, database: Database, tmp_path: Path) -> None:
    source = Database(own_server, "postgres")
    source.execute("create table a (id int primary key)", "create table b (id int primary key)")
    source.execute("insert into a values (1)", "insert into b values (1)")
    file = configuration(tmp_path, source, to_postgres(database), monitoring={"port": 0})
    with run(file) as pipeline:
        ask = pipeline.asking()
        ask.until("/ready", lambda answer: answer.code == 200, 60)
        assert ask("/tables/public.a/pause", "POST").code == 202
        ask.until("/status", lambda answer: phase(answer, "public.a") == "paused")
        source.execute("insert into a values (2)", "insert into b values (2)")
        pipeline.until(lambda: contents(database, "b") == ["(1)", "(2)"])
        assert contents(database, "a") == ["(1)"]
        assert ask("/tables/public.a/resume", "POST").code == 202
        pipeline.until(lambda: contents(database, "a") == ["(1)", "(2)"])
        ask.until("/metrics", lambda answer: b'table_changes_total{destination="copy"' in answer.body)

        own_server.stop("immediate")
        down = ask.until("/ready", lambda answer: answer.code == 503, NOTICED)
        assert "database:source" in failing(down)
        assert ask("/health").code == 200
        own_server.start()
        ask.until("/ready", lambda answer: answer.code == 200, 60)

        for child in psutil.Process(pipeline.process.pid).children():
            if "penstock.monitoring" in child.cmdline():
                child.send_signal(signal.SIGKILL)
        ask = pipeline.asking(1)
        ask.until("/ready", lambda answer: answer.code == 200)
        assert ask("/shutdown", "POST").code == 202
        assert pipeline.process.wait(60) == 0, pipeline.said()
    assert "METRICS" not in pipeline.said() or "lag_bytes=" in pipeline.said()

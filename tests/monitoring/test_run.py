"""`penstock run` with its HTTP server: what a person or a program does with a pipeline that runs."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database
from tests.monitoring.asking import Answer
from tests.monitoring.running import NOTICED, failing, run
from tests.pipeline.running import configuration, contents, to_postgres


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
        pipeline.until(lambda: 'event="capture retrying"' in pipeline.said())
        assert ask("/health").code == 200
        own_server.start()
        ask.until("/ready", lambda answer: answer.code == 200, 60)
        counted = ask.until("/status", lambda answer: answer.document["reconnect_count"])
        assert counted.document["reconnect_count"] == 1, "one outage, however many attempts"

        for child in psutil.Process(pipeline.process.pid).children():
            if "penstock.monitoring" in child.cmdline():
                child.send_signal(signal.SIGKILL)
        ask = pipeline.asking(1)
        ask.until("/ready", lambda answer: answer.code == 200)
        assert ask("/shutdown", "POST").code == 202
        assert pipeline.process.wait(60) == 0, pipeline.said()

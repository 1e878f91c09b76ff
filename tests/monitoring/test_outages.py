"""What is killed under a running pipeline is seen, with its cause and the remedy, and goes away by itself.

docs/operations.md promises ten seconds. How many it took is printed (`pytest -s`): it hangs on the machine.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.embedded.nats import NatsServer
from penstock.embedded.postgres import PostgresServer
from tests.bed import Database, fill
from tests.monitoring.asking import Answer, Asking
from tests.monitoring.running import PENSTOCK, Run, run
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration, contents, to_postgres

NUMBERS = re.compile(r"event=METRICS .*\bcdc_events=\d+ .*\blag_bytes=\d+ slot_active=1")
LONG = 60.0
"""Seconds that a loaded machine may take."""


class Watch:
    def __init__(self, pipeline: Run) -> None:
        self.pipeline = pipeline
        self.ask = pipeline.asking()

    def until_ready(self) -> None:
        self.ask.until("/ready", lambda answer: answer.code == 200, 120)

    def is_missing_from_the_start(self, name: str, begin: Callable[[], object]) -> None:
        """What was never there is told as what goes away, and once."""
        self.ask.until("/ready", lambda answer: failing(answer).keys() == {name}, LONG)
        waits = self.ask("/metrics").body
        assert b'penstock_destination_waiting{destination="bus",source="source"} 1.0' in waits
        assert b'penstock_destination_waits_total{destination="bus",source="source"} 1.0' in waits
        begin()
        self.until_ready()
        assert self.pipeline.said().count('"waiting for the destination"') == 1

    def outage(self, name: str, begin: Callable[[], object], end: Callable[[], object], *words: str) -> None:
        """Something is killed, and comes back: the condition of that name tells of it, with these words."""
        logged = len(self.pipeline.said())
        begin()
        began = time.monotonic()
        answer = self.ask.until("/ready", lambda answer: name in failing(answer), LONG)
        condition = failing(answer)[name]
        assert answer.code == 503
        print(f"{name}: in /ready after {time.monotonic() - began:.1f} s, {condition}")
        shown = self.ask.until("/status", lambda answer: name in failing(answer), LONG)
        assert failing(shown)[name]["remedy"] == condition["remedy"] != ""
        assert all(word in condition["reason"] for word in words), condition
        remedy = condition["remedy"]
        self.pipeline.until(lambda: remedy in self.pipeline.said()[logged:])
        print(f"{name}: in the log after {time.monotonic() - began:.1f} s")
        lines = [line for line in self.pipeline.said()[logged:].splitlines() if remedy in line]
        assert all(word in lines[0] for word in words), lines
        assert self.ask("/health").code == 200
        end()
        began = time.monotonic()
        self.until_ready()
        print(f"{name}: green again after {time.monotonic() - began:.1f} s")


def failing(answer: Answer) -> dict[str, Any]:
    return {each["name"]: each for each in answer.document.get("conditions", []) if not each["ok"]}


def is_shown_elsewhere(file: Path) -> None:
    """By `penstock serve`, which only looks."""
    serving = subprocess.Popen(
        [*PENSTOCK, "serve", str(file), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        ask = Asking(serving.stdout.readline().strip())
        ask.until("/ready", lambda answer: answer.code == 200, LONG)
        shown = ask("/status").document
        assert "process" in shown["running"]
        assert [each["name"] for each in shown["destinations"]] == ["copy", "bus"]
        refused = ask("/shutdown", "POST")
        assert (refused.code, refused.document["error"]["kind"]) == (403, "ReadOnly")
        assert ask("/tables/public.a/reload", "POST").code == 403
        serving.send_signal(signal.SIGINT)
        said = serving.communicate(timeout=LONG)
        assert (serving.returncode, said) == (130, ("", ""))  # by Ctrl-C, without a word
    finally:
        serving.kill()
        serving.communicate()


def streams_are_described(ask: Asking) -> None:
    changes = ask("/streams/info").document
    assert (changes["destination"], changes["config"]["name"]) == ("bus", "CDC")
    assert changes["state"]["messages"] >= 1
    assert ask("/streams/info?stream=INIT").document["config"]["name"] == "INIT"
    unknown = ask("/streams/info?stream=OTHER")
    assert (unknown.code, unknown.document["error"]["kind"]) == (404, "UnknownStream")


def test_a_pipeline_and_what_is_killed_under_it(
    database: Database,
    own_server: PostgresServer,
    own_nats: NatsServer,
    small_disk: Path,
    tmp_path: Path,
) -> None:
    copy = Database(own_server, "postgres")
    database.execute("create table a (id int primary key)", "insert into a values (1)")
    file = configuration(
        tmp_path,
        database,
        to_postgres(copy),
        to_nats(own_nats),
        monitoring={"port": 0},
        spool={"path": str(small_disk / "spool")},
        state={"url": f"sqlite:///{small_disk}/state.db"},
    )
    own_nats.stop()
    with run(file) as pipeline:
        watch = Watch(pipeline)
        watch.is_missing_from_the_start("destination:bus", own_nats.start)
        streams_are_described(watch.ask)
        is_shown_elsewhere(file)
        watch.outage("destination:bus", own_nats.kill, own_nats.start, "NATS")
        watch.outage("destination:copy", lambda: own_server.stop("immediate"), own_server.start)
        fillers = list[Path]()

        def leave_no_room() -> None:
            fillers.append(fill(small_disk))
            database.execute("insert into a values (2)")

        watch.outage("capture:source", leave_no_room, lambda: fillers.pop().unlink(), "no room")
        pipeline.until(lambda: contents(copy, "a") == ["(1)", "(2)"])
        pipeline.until(lambda: NUMBERS.search(pipeline.said()))

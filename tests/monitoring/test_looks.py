"""A look at the pipeline that fails, one that never ends, and one that finds it busy for long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from penstock.capture.launch import spool_of
from penstock.config import Config
from penstock.monitoring import observing, processes, readiness
from penstock.monitoring.observing import Heart
from penstock.pipeline.status import StatusReader
from tests.monitoring.asking import Answer, Served
from tests.monitoring.running import failing

NAMED_IN_LATIN_1 = "open('/proc/self/comm', 'wb').write(b'caf\\xe9'); print(flush=True); input()"


def capture_error(answer: Answer) -> str | None:
    error = answer.document["sources"][0]["capture"]["error"]
    return str(error["kind"]) if error else None


def test_a_spool_that_cannot_be_read_is_told_for_as_long_as_that_lasts(config: Config, http: Served) -> None:
    state = spool_of(config, config.sources[0]) / "capture.json"
    state.mkdir(parents=True)
    http.ask.until("/status", lambda answer: capture_error(answer) == "SpoolUnreachable")
    assert "capture:source" in failing(http.ask("/ready"))
    assert http.ask("/status").document["error"] is None
    state.rmdir()
    http.ask.until("/status", lambda answer: capture_error(answer) is None)


def test_nothing_is_ready_that_is_not_looked_at(http: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "STALE", 1.0)
    monkeypatch.setattr(readiness, "STALE", 1.0)
    hangs, read = threading.Event(), StatusReader.read

    def hang(reader: StatusReader, patience: float | None = None) -> dict[str, object]:
        hangs.wait(60)
        return read(reader, patience)

    def is_known(answer: Answer) -> bool:
        return "state_store" not in failing(answer)

    assert is_known(http.ask("/status"))
    monkeypatch.setattr(StatusReader, "read", hang)
    http.ask.until("/status", lambda answer: not is_known(answer))
    assert b"\npenstock_ready 0.0\n" in http.ask("/metrics").body
    hangs.set()
    http.ask.until("/status", is_known)


def test_a_process_may_be_called_anything() -> None:
    named = [sys.executable, "-c", NAMED_IN_LATIN_1]
    with subprocess.Popen(named, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.memory(os.getpid())["other"] > 0
        process.communicate(b"\n")


def test_who_is_busy_for_long_is_not_ready_and_lives(http: Served) -> None:
    assert http.observer.heart == Heart()
    for silent, lives in ((readiness.STUCK + 1, 200), (readiness.DEAD + 1, 503)):
        http.observer.heart = Heart(os.getpid(), time.time(), silent)
        http.ask.until("/ready", lambda answer: f"done nothing for {silent:.0f} s" in answer.body.decode())  # noqa: B023
        assert http.ask("/health").code == lives

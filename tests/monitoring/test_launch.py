"""The HTTP process beside a pipeline may be stuck: neither the pipeline nor its end waits for it."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import threading

import psutil
import pytest

from penstock.config import Config
from penstock.logs import LogFormat, LogLevel
from penstock.monitoring import launch
from penstock.monitoring.launch import monitored
from penstock.pipeline.pipeline import Pipeline
from tests.monitoring.asking import Asking
from tests.monitoring.serving import beside, servers, until

MUCH = "x" * 1000


def stop(process: psutil.Process) -> None:
    process.suspend()
    until(lambda: process.status() == psutil.STATUS_STOPPED)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LAST_WORDS", 0.5)


def test_nothing_is_served_for_who_does_not_want_it(config: Config) -> None:
    pipeline = Pipeline(config)
    with monitored(pipeline, LogLevel.WARNING.number, LogFormat.TEXT, serve=False) as monitoring:
        assert (monitoring, servers()) == (None, [])
    with monitored(pipeline, LogLevel.WARNING.number, LogFormat.TEXT) as monitoring:
        assert monitoring is not None
        until(lambda: monitoring.url)
    assert servers() == []


@pytest.mark.parametrize("ignored", [False, True])
def test_the_end_does_not_wait_for_a_process_that_is_stopped(config: Config, ignored: bool) -> None:
    with beside(config) as monitoring:
        (process,) = servers()
        stop(process)
        if ignored:  # and does not read: the pipe is full
            for number in range(500):
                monitoring.take({"event": "much", "number": number, "text": MUCH})
            until(lambda: len(monitoring._waiting) < 500)


def test_a_full_pipe_blocks_nobody_who_logs_and_the_newest_arrives(config: Config) -> None:
    with beside(config) as monitoring:
        (process,) = servers()
        stop(process)

        def log() -> None:
            for number in range(2 * launch.MOST_WAITING):
                monitoring.take({"event": "much", "level": "info", "number": number, "text": MUCH})
            monitoring.take({"event": "the last one", "level": "info"})

        logging = threading.Thread(target=log, daemon=True)
        logging.start()
        logging.join(60)
        assert not logging.is_alive()
        process.resume()
        assert monitoring.url is not None
        Asking(monitoring.url).until("/events", lambda answer: b"the last one" in answer.body, 60)


def test_a_process_that_does_not_read_is_replaced(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with beside(config) as monitoring:
        (process,) = servers()
        first = monitoring.url
        stop(process)
        with monkeypatch.context() as impatient:
            impatient.setattr(launch, "DEAF", 0.5)
            for number in range(500):
                monitoring.take({"event": "much", "number": number, "text": MUCH})
            until(lambda: not process.is_running())
        until(lambda: monitoring.url not in (first, None))
        assert monitoring.url is not None
        assert Asking(monitoring.url)("/health").code in (200, 503)


def test_an_end_in_the_middle_of_a_line_is_an_end(config: Config) -> None:
    """So it is if the pipeline is killed."""
    how = {"level": LogLevel.WARNING.number, "format": LogFormat.TEXT}
    given = {"config": base64.b64encode(pickle.dumps(config)).decode(), **how}
    for text in (json.dumps(given)[:100], json.dumps(given) + '\n{"event": "x'):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.monitoring"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")

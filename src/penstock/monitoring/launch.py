"""The pipeline's side of its HTTP server: the process is kept running, and told what happens.

Whatever becomes of it, the pipeline goes on, and ends: what it is to be told waits in a queue that drops the
oldest, and a process that does not read, or does not end when it should, is killed.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from penstock import logs
from penstock.config import Config
from penstock.model import children
from penstock.model.errors import PenstockError, from_dict
from penstock.pipeline.pipeline import Pipeline

MOST_WAITING = 10_000
HEARTBEAT = 1.0
DEAF = 30.0
"""Seconds without reading after which the process is taken for stuck, and started anew."""
LAST_WORDS = 5.0
"""Seconds that the process has to end by itself, and once more after it was asked to by a signal."""
_GLANCE = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@contextmanager
def monitored(
    pipeline: Pipeline, level: int, format: str, *, serve: bool = True, watched: bool = False
) -> Iterator[Monitoring | None]:
    """Serve HTTP for a pipeline until this is left, unless its configuration or `serve` says not to. Whatever
    the log is told comes there, too; lines of the log are written from this level on. Where it is `watched`,
    somebody sees the numbers of its METRICS lines all the time."""
    if not serve or not pipeline.config.monitoring.enabled:
        yield None
        return
    own_level = max(level, logging.WARNING) if watched else level
    with Monitoring(pipeline.config, pipeline.stop, own_level, format) as monitoring:
        logs.to_stderr(level, format, monitoring.take, coloured=watched)
        monitoring.watch(lambda: pipeline.went_round)
        yield monitoring


class Monitoring:
    """Serves for as long as it is entered."""

    def __init__(self, config: Config, stop: threading.Event, level: int, format: str) -> None:
        self._config = config
        self._stop = stop
        self._how = {"level": level, "format": format}
        self._went_round: Callable[[], float | None] = lambda: None
        self._began = time.time()
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_serving, name="monitoring", daemon=True)
        self.url: str | None = None
        """Where it is served, once it is."""

    def __enter__(self) -> Monitoring:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def watch(self, went_round: Callable[[], float | None]) -> None:
        """Say from now on how long the pipeline's thread has done nothing."""
        self._went_round = went_round

    def take(self, event: Mapping[str, Any]) -> None:
        """Pass on what the log was told."""
        fields = {key: value for key, value in event.items() if key != "exc_info"}
        self._waiting.append(json.dumps(fields, default=str))

    def _keep_serving(self) -> None:
        log, pause, last_error = structlog.get_logger("penstock.monitoring"), _FIRST_PAUSE, ""
        while not self._ended.is_set():
            began = time.monotonic()
            error = self._serve(log)
            if self._ended.is_set():
                break
            if time.monotonic() - began > _LONGEST_PAUSE:  # it served: this is another thing than the last
                pause, last_error = _FIRST_PAUSE, ""
            if error != last_error:
                last_error = error
                log.warning("the HTTP server ended, starting it again", error=error)
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, log: Any) -> str:
        """Have it served until that ends, or we do; return why it ended."""
        try:
            child = self._begun()
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        failure: list[PenstockError] = []
        hearing = threading.Thread(target=self._hear, args=(child, failure, log), daemon=True)
        hearing.start()
        why = ""
        try:
            self._send(child, {"config": base64.b64encode(pickle.dumps(self._config)).decode(), **self._how})
            while not self._ended.is_set() and child.poll() is None:
                self._tell(child)
                self._ended.wait(HEARTBEAT)
        except TimeoutError:
            why = f"it did not read for {DEAF:.0f} seconds"
        except OSError:
            pass  # it has ended
        finally:
            _end(child)
            hearing.join(LAST_WORDS)
        return why or (str(failure[0]) if failure else f"it ended with status {child.returncode}")

    def _begun(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-m", "penstock.monitoring"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=children.environment(self._config.withheld),
            start_new_session=True,  # Ctrl-C is for us: it ends when we close its input
        )
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        return child

    def _tell(self, child: subprocess.Popen[bytes]) -> None:
        while self._waiting:
            self._send(child, self._waiting.popleft())
        heart = {"pid": os.getpid(), "began": self._began, "silent_seconds": self._silent()}
        self._send(child, {"heart": heart})

    def _send(self, child: subprocess.Popen[bytes], what: str | dict[str, Any]) -> None:
        """Write a line, as far as we have not ended. Raises TimeoutError if it is not read."""
        assert child.stdin is not None
        line = memoryview(f"{what if isinstance(what, str) else json.dumps(what)}\n".encode())
        room = select.poll()
        room.register(child.stdin, select.POLLOUT)
        deadline = time.monotonic() + DEAF
        while line and not self._ended.is_set():
            written = child.stdin.write(line) or 0  # None: there is no room
            if written:
                line, deadline = line[written:], time.monotonic() + DEAF
            elif time.monotonic() > deadline:
                raise TimeoutError
            else:
                room.poll(_GLANCE * 1000)

    def _silent(self) -> float | None:
        went_round = self._went_round()
        return None if went_round is None or self._stop.is_set() else time.monotonic() - went_round

    def _hear(self, child: subprocess.Popen[bytes], failure: list[PenstockError], log: Any) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                message = json.loads(line)
                if "listening" in message:
                    self.url = message["listening"]
                    log.info("dashboard", url=self.url)
                elif "stop" in message:
                    log.info("asked to stop over HTTP")
                    self._stop.set()
                else:
                    failure.append(from_dict(message["error"]))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Have it end: by the end of its input, then by a signal, then by one that it cannot pass over."""
    assert child.stdin is not None
    child.stdin.close()
    for insist in (None, child.terminate, child.kill):
        if insist is not None:
            insist()
        with suppress(subprocess.TimeoutExpired):
            child.wait(LAST_WORDS)
            return

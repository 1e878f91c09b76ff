"""The pipeline's side of its HTTP server: the process is kept running, and told what happens.

Whatever becomes of it, the pipeline goes on: what it is to be told waits in a queue that drops the oldest.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from penstock.config import Config
from penstock.model.errors import PenstockError, from_dict

MOST_WAITING = 10_000
HEARTBEAT = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


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
        if self._config.monitoring.enabled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, went_round: Callable[[], float | None]) -> None:
        """Say from now on how long the pipeline's thread has done nothing."""
        self._went_round = went_round

    def take(self, event: Mapping[str, Any]) -> None:
        """Pass on what the log was told."""
        fields = {key: value for key, value in event.items() if key != "exc_info"}
        self._waiting.append(json.dumps(fields, default=str))

    def _keep_serving(self) -> None:
        log, pause, said = structlog.get_logger("penstock.monitoring"), _FIRST_PAUSE, ""
        while not self._ended.is_set():
            error = self._serve(log)
            if self._ended.is_set():
                break
            if error != said:
                said = error
                log.warning("the HTTP server ended, starting it again", error=error)
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, log: Any) -> str:
        """Have it served until that ends, or we do; return why it ended."""
        child = subprocess.Popen(
            [sys.executable, "-m", "penstock.monitoring"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name not in self._config.withheld},
            start_new_session=True,  # Ctrl-C is for us: it ends when we close its input
        )
        assert child.stdin is not None
        failure: list[PenstockError] = []
        hearing = threading.Thread(target=self._hear, args=(child, failure, log), daemon=True)
        hearing.start()
        try:
            config = base64.b64encode(pickle.dumps(self._config)).decode()
            child.stdin.write(json.dumps({"config": config, **self._how}) + "\n")
            while not self._ended.is_set() and child.poll() is None:
                self._tell(child)
                self._ended.wait(HEARTBEAT)
        except OSError:
            pass  # it has ended
        finally:
            with suppress(OSError):
                child.stdin.close()
            child.wait()
            hearing.join()
        return str(failure[0]) if failure else f"it ended with status {child.returncode}"

    def _tell(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        while self._waiting:
            child.stdin.write(self._waiting.popleft() + "\n")
        heart = {"pid": os.getpid(), "began": self._began, "silent_seconds": self._silent()}
        child.stdin.write(json.dumps({"heart": heart}) + "\n")
        child.stdin.flush()

    def _silent(self) -> float | None:
        went_round = self._went_round()
        return None if went_round is None or self._stop.is_set() else time.monotonic() - went_round

    def _hear(self, child: subprocess.Popen[str], failure: list[PenstockError], log: Any) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            if "listening" in said:
                self.url = said["listening"]
                log.info("dashboard", url=self.url)
            elif "stop" in said:
                log.info("asked to stop over HTTP")
                self._stop.set()
            else:
                failure.append(from_dict(said["error"]))

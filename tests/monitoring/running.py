"""`penstock run` as a process, with its HTTP server and its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.monitoring.asking import Answer, Asking

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
NOTICED = 10.0
"""Seconds within which an outage shows."""


class Run:
    def __init__(self, file: Path, **environ: str) -> None:
        self._log = file.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*PENSTOCK, "run", str(file), "--log-format", "logfmt"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=file.parent,
                env=os.environ | {"PENSTOCK_MONITORING__ENABLED": "true"} | environ,
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

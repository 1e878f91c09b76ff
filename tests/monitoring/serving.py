"""The process that serves HTTP beside a pipeline, as the pipeline starts it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from penstock.config import Config
from penstock.logs import LogFormat, LogLevel
from penstock.monitoring.launch import Monitoring


def until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _serves(child)]


def _serves(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:] == ["-m", "penstock.monitoring"]
    except psutil.NoSuchProcess:  # it has ended, and nobody has asked how
        return False


@contextmanager
def beside(config: Config) -> Iterator[Monitoring]:
    """A server that listens; it is gone when this is left, and that does not take for ever."""
    monitoring = Monitoring(config, threading.Event(), LogLevel.WARNING.number, LogFormat.TEXT)
    monitoring.__enter__()
    try:
        until(lambda: monitoring.url)
        yield monitoring
    finally:
        ending = threading.Thread(target=monitoring.__exit__, daemon=True)
        ending.start()
        ending.join(60)
        left = servers()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert not ending.is_alive()
        assert left == []

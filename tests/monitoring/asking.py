"""A server of a pipeline's HTTP, in this process, and requests to it as they go over the wire."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from penstock.config import Config
from penstock.monitoring.events import Events
from penstock.monitoring.observing import Observer
from penstock.monitoring.serving import HttpServer


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Asking:
    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://").rstrip("/")

    def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask; headers as keywords, `_` for `-`."""
        return self.send(path, method, None, headers)

    def send(self, path: str, method: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = HTTPConnection(self.host, timeout=20)
        connection.request(method, path, body, {name.replace("_", "-"): headers[name] for name in headers})
        answer = connection.getresponse()
        given = {name.lower(): value for name, value in answer.getheaders()}
        said = answer.read()
        connection.close()
        return Answer(answer.status, given, said)

    def until(self, path: str, holds: Callable[[Answer], object], seconds: float = 20) -> Answer:
        end = time.monotonic() + seconds
        while not holds(answer := self(path)):
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        return answer


class Served(NamedTuple):
    ask: Asking
    observer: Observer
    stopped: threading.Event


@contextmanager
def served(config: Config, *, read_only: bool = False) -> Iterator[Served]:
    observer, stopped = Observer(config, Events(), only_looks=read_only), threading.Event()
    server = HttpServer(observer, None if read_only else stopped.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Served(Asking(server.url), observer, stopped)
    finally:
        server.end()
        thread.join()

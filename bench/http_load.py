"""Requests at a steady pace over a few connections: `python -m bench.http_load URL RATE`.

It says when it is connected; when its input ends it says, as JSON, how many were answered in what time, and
what CPU it took itself. An answer that is not 200 ends it. It looks at no more of an answer than it must.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import deque
from urllib.parse import urlsplit

CONNECTIONS = 100
PACE = 0.005
"""Seconds between two looks at what is due."""
PATHS = ("/metrics", "/status")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, requests: tuple[bytes, ...]) -> None:
        self.answered = 0
        self.failed: str | None = None
        self._requests = requests
        self._got = b""
        self._left: int | None = 0
        """Bytes of the answer that are still to come; None: its head is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.failed = self.failed or f"the connection ended: {error}"

    @property
    def is_free(self) -> bool:
        return self._left == 0

    def ask(self, number: int) -> None:
        self._left = None
        self._transport.write(self._requests[number % len(self._requests)])

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            self._got += data
            head, ended, body = self._got.partition(b"\r\n\r\n")
            if not ended:
                return
            length = _LENGTH.search(head)
            if not head.startswith(b"HTTP/1.1 200") or length is None:
                self.failed = head.decode(errors="replace")
                return
            self._got, self._left, data = b"", int(length[1]), body
        self._left -= len(data)
        self.answered += self._left == 0


async def load(url: str, rate: float) -> dict[str, float]:
    place = urlsplit(url)
    host, port = str(place.hostname), int(place.port or 80)
    requests = tuple(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode() for path in PATHS)
    loop = asyncio.get_running_loop()
    connections = deque(
        [
            (await loop.create_connection(lambda: _Connection(requests), host, port))[1]
            for _ in range(CONNECTIONS)
        ]
    )
    print("connected", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.read)
    began, asked = time.monotonic(), 0
    while not ended.done():
        due = int((time.monotonic() - began) * rate)
        connections.rotate(due - asked)  # all in turn: the server ends one over which nothing comes
        for connection in connections:
            if connection.failed is not None:
                raise SystemExit(f"the load came to an end: {connection.failed}")
            if asked < due and connection.is_free:
                connection.ask(asked)
                asked += 1
        await asyncio.sleep(PACE)
    seconds = time.monotonic() - began
    answered = sum(connection.answered for connection in connections)
    return {"answered": answered, "seconds": seconds, "cpu": time.process_time()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(sys.argv[1], float(sys.argv[2])))))

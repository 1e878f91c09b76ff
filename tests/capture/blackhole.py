"""A proxy that can go silent: what is connected stays so and hears nothing more; new connections work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._swallowed = 0
        """Connections so far that are silent."""
        threading.Thread(target=self._accept, daemon=True).start()

    def go_silent(self) -> None:
        self._swallowed = len(self._sockets)

    def close(self) -> None:
        self._listener.close()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                number = len(self._sockets)
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._hand_on, args=(*ends, number), daemon=True).start()

    def _hand_on(self, reader: socket.socket, writer: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := reader.recv(65536):
                if number >= self._swallowed:
                    writer.sendall(data)
            if number >= self._swallowed:
                writer.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    made = Proxy(port)
    try:
        yield made
    finally:
        made.close()

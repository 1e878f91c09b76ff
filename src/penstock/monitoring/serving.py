"""The HTTP server: a socket, uvicorn, and the thread that looks."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import uvicorn

from penstock.model.errors import PenstockError, Scope
from penstock.monitoring import app
from penstock.monitoring.connection import Connection
from penstock.monitoring.observing import Observer

MOST_CONNECTIONS = 256
IDLE = 10
"""Seconds after which a connection that asks for nothing, or only begins to, is closed."""


class CannotListen(PenstockError):
    """The address of the HTTP server cannot be had."""

    scope = Scope.RUN
    retry = True
    remedy = "Set monitoring.port to another one (0: any that is free), or monitoring.enabled to false"


class HttpServer:
    def __init__(self, observer: Observer, stop: Callable[[], None] | None) -> None:
        self._observer = observer
        config = observer.config.monitoring
        self._socket = _listening(config.host, config.port)
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app.make(observer, stop),
                log_config=None,
                log_level="critical",  # what is no HTTP, and what `app` has told already
                access_log=False,
                server_header=False,
                lifespan="off",
                http=Connection,
                ws="none",
                limit_concurrency=MOST_CONNECTIONS,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=2,
            )
        )

    def run(self) -> None:
        """Serve until told to end, or by Ctrl-C."""
        self._observer.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._observer.stop()
            self._socket.close()

    def end(self) -> None:
        self._server.should_exit = True


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "another program listens there" if taken else error.strerror or str(error)
        raise CannotListen(f"HTTP cannot be served: {reason}", address=f"{host}:{port}") from None

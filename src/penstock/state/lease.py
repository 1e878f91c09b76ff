"""The lease: one process at a time works on a pipeline's state, and everybody can be told which.

Two things together. A *lock* that the operating system or the server frees when its holder dies: `flock` on a
file beside SQLite's, or an advisory lock of PostgreSQL that lives as long as a connection kept for it. And a
*row* that names the holder, with a token that is another for each taking.

The lock says whether the holder lives; the token says whether the state is still his. A connection can be
lost while its process goes on, and another process may then take the lock. It writes its token first, so that
the former holder, who looks at the token in every writing transaction, writes nothing more.

What a crash leaves, after each step of taking:
1. the lock: nothing, it goes with the process;
2. the row: a name that nobody asks for, because the lock is free; the next holder replaces it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import psycopg
from sqlalchemy import Connection, delete, insert, select, update

from penstock.model import private
from penstock.model.errors import PenstockError, StateInUse, StateUnreachable
from penstock.state.database import Database, explained
from penstock.state.tables import leases

PATIENCE = 1.0
"""Seconds: how long a server may need to notice that the former holder died."""


class Lock(Protocol):
    def take(self) -> bool:
        """Try to take the lock; return whether it is ours now."""

    def held(self) -> bool:
        """Whether the lock is still ours."""

    def release(self) -> None: ...


class FileLock:
    """`flock` on a file of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        try:
            file = private.opener(str(self._path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StateUnreachable(
                f"the lock file cannot be opened: {error.strerror}", file=self._path
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def held(self) -> bool:
        return self._file is not None

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ServerLock:
    """An advisory lock of PostgreSQL, on a connection of its own."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)
        self._connection: psycopg.Connection[Any] | None = None

    def take(self) -> bool:
        connection = self._database.session()
        try:
            with explained(self._database.place):
                # The server, too, is to notice soon that the holder's machine is gone.
                connection.execute(
                    """select set_config('tcp_keepalives_idle', '30', false),
                              set_config('tcp_keepalives_interval', '10', false),
                              set_config('tcp_keepalives_count', '3', false)"""
                )
                row = connection.execute("select pg_try_advisory_lock(%s)", (self._key,)).fetchone()
                if row == (True,):
                    self._connection = connection
        finally:
            if self._connection is not connection:
                connection.close()
        return self._connection is connection

    def held(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute("select 1")
                return True
        except psycopg.Error:
            self.release()
        return False

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Holder:
    token: str
    host: str
    pid: int
    since: datetime

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class Lease:
    """The right to work on the state of one pipeline."""

    def __init__(self, database: Database, pipeline: str) -> None:
        """Take the lease, or raise `StateInUse` with who has it."""
        self._database = database
        self._pipeline = pipeline
        self._checking = threading.Lock()
        self._us = Holder(uuid.uuid4().hex, socket.gethostname(), os.getpid(), datetime.now(UTC))
        self._lock = lock_of(database, pipeline)
        self._take_lock()
        try:
            self._sign()
        except BaseException:
            self._lock.release()
            raise

    @staticmethod
    def holder(database: Database, pipeline: str) -> Holder | None:
        """Return who holds it now, if somebody does: who died has let go of the lock, but not of the row."""
        if database.file and not _lock_file(database.file, pipeline).exists():
            return None  # nobody ever did: who asks leaves no file
        lock = lock_of(database, pipeline)
        if lock.take():
            lock.release()
            return None
        with database.reading() as connection:
            return _holder(connection, pipeline)

    def confirm(self, connection: Connection) -> None:
        """Raise if another process has taken the lease; none can before this writing transaction ends."""
        holder = _holder(connection, self._pipeline)
        if holder is None or holder.token != self._us.token:
            raise self._in_use(str(holder or "nobody now, but was by another process in between"))

    def check(self) -> None:
        """Raise unless the lease still holds; where the connection that held it was lost, take it again.

        Raises `StateUnreachable`, to be tried again, while the server is away. `StateInUse` if another
        process has it now, or had it in between: what we remember of the state may be wrong then.
        """
        with self._checking:
            if self._lock.held():
                return
            self._take_lock()
            try:
                with self._database.reading() as connection:
                    self.confirm(connection)
            except BaseException:
                self._lock.release()
                raise

    def release(self) -> None:
        """Give the lease back. A server that is gone is not told: the lock goes with the connection."""
        with self._checking:
            try:
                with self._database.writing() as connection:
                    ours = leases.c.token == self._us.token
                    connection.execute(delete(leases).where(leases.c.pipeline == self._pipeline, ours))
            except PenstockError:
                pass
            finally:
                self._lock.release()

    def _sign(self) -> None:
        """Put our name in the row, in place: a former holder that waits for the row then sees ours."""
        ours = {"token": self._us.token, "host": self._us.host, "pid": self._us.pid, "since": self._us.since}
        with self._database.writing() as connection:
            signed = connection.execute(
                update(leases).where(leases.c.pipeline == self._pipeline).values(ours)
            )
            if signed.rowcount == 0:
                connection.execute(insert(leases).values(pipeline=self._pipeline, **ours))

    def _take_lock(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self._lock.take():
            if time.monotonic() > until:
                with self._database.reading() as connection:
                    holder = _holder(connection, self._pipeline)
                    raise self._in_use(str(holder or "a process that has not said its name yet"))
            time.sleep(0.05)

    def _in_use(self, who: str) -> StateInUse:
        place = self._database.place
        return StateInUse(f"the state of pipeline {self._pipeline} is held by {who}", store=place)


def lock_of(database: Database, pipeline: str) -> Lock:
    """Return the lock of a pipeline, not taken yet."""
    if database.file:
        return FileLock(_lock_file(database.file, pipeline))
    return ServerLock(database, f"penstock state of {pipeline}")


def _lock_file(database: Path, pipeline: str) -> Path:
    return Path(f"{database}.{quote(pipeline, safe='')}.lock")


def _holder(connection: Connection, pipeline: str) -> Holder | None:
    asked = select(leases.c.token, leases.c.host, leases.c.pid, leases.c.since)
    asked = asked.where(leases.c.pipeline == pipeline).with_for_update(read=True)
    row = connection.execute(asked).first()
    return None if row is None else Holder(*row)

"""Servers and databases for tests, benchmarks among them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import psycopg

from penstock.embedded.nats import USER, NatsServer
from penstock.embedded.postgres import PostgresServer

_numbers = itertools.count(1)
_MEMORY, _WANTED = Path("/dev/shm"), 8 << 30

# The server's own superuser has its password; a role that a test makes needs none.
ACCESS = """
local all all scram-sha-256
host all postgres 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


def server_folder() -> Path:
    """Return a new folder for a server: in memory, where there is room. A database has 300 files, and ext4
    looks for long for the place of a new one among so many that were just removed."""
    is_roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _WANTED
    return Path(tempfile.mkdtemp(prefix="penstock-test-", dir=_MEMORY if is_roomy else "/tmp"))


def started_server(bin_dir: Path, **settings: str) -> PostgresServer:
    folder = server_folder()
    # Under concurrent schema changes PostgreSQL 15 showed two visible rows of one table in pg_class, within a
    # minute of a random workload in two runs of two; without autovacuum in none of two. Why is not known.
    server = PostgresServer(folder, bin_dir, {"fsync": "off", "autovacuum": "off", **settings})
    server.start()
    (server.data / "pg_hba.conf").write_text(ACCESS)
    server.execute("select pg_reload_conf()")
    if (server.data / "PG_VERSION").read_text() >= "16":  # thousands of connections: half of what each takes
        server.execute(f"set scram_iterations = 1; alter role postgres password '{server.password}'")
    return server


@dataclass(frozen=True, slots=True)
class Database:
    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, **options)

    def execute(self, *statements: str) -> None:
        """Each statement in its own transaction; one string may hold several, which share one."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(statement.encode(), values or None).fetchall()


def fresh_database(server: PostgresServer) -> Iterator[Database]:
    database = Database(server, f"test_{next(_numbers)}")
    server.execute(f'create database "{database.name}"')
    yield database
    if not server.running:
        return
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s",
            (database.name,),
        )
        for _ in range(100):
            try:
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    " where database = %s",
                    (database.name,),
                )
                break
            except psycopg.errors.ObjectInUse:
                connection.execute("select pg_sleep(0.05)")
        connection.execute(f'drop database "{database.name}" with (force)'.encode())


def fill(disk: Path, but: int = 0) -> Path:
    """Leave no more than so much room on a disk; return what is to be removed to make room."""
    filler, left = disk / "filler", disk / "left"
    left.write_bytes(bytes(but))
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    left.unlink()
    return filler


def started_nats(**jetstream: Any) -> NatsServer:
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-nats-", dir="/tmp"))
    server = NatsServer(folder, jetstream=jetstream)
    server.start()
    return server


def empty_nats(server: NatsServer) -> None:
    """Remove every stream; buckets are streams, too."""

    async def empty() -> None:
        client = await nats.connect(server.url, user=USER, password=server.password)
        manager = client.jetstream()
        for stream in await manager.streams_info():
            await manager.delete_stream(str(stream.config.name))
        await client.close()

    asyncio.run(empty())

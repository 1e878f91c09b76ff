"""Two PostgreSQL servers with equal settings, a source and a destination, for both sides of a benchmark.

Whatever the benchmark itself does there (writing, looking, comparing), it does as the role `bench`: the role
is in the title of a server's process, which keeps our own work out of the figures (`usage.py`). A *mark* is
a row that is committed after everything else: where it is visible, all before it is.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from penstock.embedded.postgres import PostgresServer
from penstock.postgres.connection import Connection, connect

SOURCE = "source"
"""The database at the source."""
ROLE = "bench"
# A side that is held makes no sign of life: the servers must not mind. Subscriptions start again at once.
SETTINGS = {
    "fsync": "off",
    "autovacuum": "off",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "wal_sender_timeout": "0",
    "wal_receiver_timeout": "0",
    "wal_retrieve_retry_interval": "100ms",
}
LOOK = 0.005
"""Seconds between two looks at the destination."""
GIVEN_UP = 1800.0

_marks = itertools.count(1)


class NeverArrived(Exception):
    """What was waited for did not come, or came wrong: there is nothing to measure."""


def as_application(conninfo: str) -> Connection:
    """A session that finds its tables where applications do."""
    connection = connect(conninfo)
    connection.execute("set search_path to public")
    return connection


@dataclass(frozen=True, slots=True)
class Servers:
    source: PostgresServer
    destination: PostgresServer

    def at_source(self) -> Connection:
        return as_application(self.source.dsn(SOURCE, user=ROLE))

    def at_destination(self, database: str) -> Connection:
        return as_application(self.destination.dsn(database, user=ROLE))

    def make_database(self, name: str, *tables: str) -> None:
        """A database of that name at the destination, in the place of any; with these tables."""
        self.drop_database(name)
        with connect(self.destination.dsn(user=ROLE)) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        with self.at_destination(name) as connection:
            for table in tables:
                connection.execute(table.encode())

    def drop_database(self, name: str) -> None:
        with connect(self.destination.dsn(user=ROLE)) as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    def mark(self) -> int:
        """Commit a mark at the source."""
        number = next(_marks)
        with self.at_source() as connection:
            connection.execute("insert into mark values (%s)", (number,))
        return number

    def wait_for(self, mark: int, database: str) -> None:
        with self.at_destination(database) as connection:
            until = time.monotonic() + GIVEN_UP
            while connection.execute("select 1 from mark where n = %s", (mark,)).fetchone() is None:
                if time.monotonic() > until:
                    raise NeverArrived(f"in {database} nothing has arrived for {GIVEN_UP:.0f} s")
                time.sleep(LOOK)

    def prove_equal(self, database: str, tables: Sequence[str]) -> None:
        """A figure for something that went wrong is none."""
        with self.at_source() as source, self.at_destination(database) as destination:
            for table in tables:
                there, here = _checksum(source, table), _checksum(destination, table)
                if there != here:
                    raise NeverArrived(f"{table} in {database} is {here}, at the source {there}")


MARK = "create table mark (n bigint primary key)"


@contextmanager
def two_servers() -> Iterator[Servers]:
    servers = Servers(*(_server(name) for name in ("source", "destination")))
    try:
        for server in (servers.source, servers.destination):
            server.start()
            server.execute(f"create role {ROLE} superuser login password '{server.password}'")
        servers.source.execute(f"create database {SOURCE}")
        with servers.at_source() as connection:
            connection.execute(MARK.encode())
        yield servers
    finally:
        servers.destination.remove()
        servers.source.remove()


def _server(name: str) -> PostgresServer:
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-bench-{name}-", dir="/tmp"))
    return PostgresServer(folder, settings=SETTINGS)


def _checksum(connection: Connection, table: str) -> tuple[object, ...]:
    """Of the rows in any order."""
    statement = sql.SQL("select count(*), sum(hashtextextended(t::text, 0)::numeric) from {} t")
    found = connection.execute(statement.format(sql.Identifier(table))).fetchone()
    assert found is not None
    return found

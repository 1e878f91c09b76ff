"""NATS as the demo's end: a consumer keeps a mirror in SQLite, and that is compared with the source."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

from psycopg import sql

from penstock.consumer import ConsumerAccess, Mirror
from penstock.demo import shop
from penstock.demo.proof import Checksum, checksums
from penstock.embedded.nats import USER, NatsServer
from penstock.model import TableName
from penstock.model.errors import FeedMissing
from penstock.postgres.connection import Connection, connect

_PAUSE = 0.2


class NatsEnd:
    what = "NATS JetStream, and from there to a mirror in SQLite"
    files = None

    def __init__(self, folder: Path) -> None:
        self._server = NatsServer(folder / "nats")
        self._file = folder / "mirror.db"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    def start(self) -> str:
        self._server.start()
        self._thread.start()
        login = f"user: {USER}\n    password: {self._server.password}"
        return f"type: nats\n    servers: {self._server.url}\n    {login}"

    def follows(self) -> bool:
        """Whether every table of the shop has been loaded from a snapshot."""
        try:
            with contextlib.closing(sqlite3.connect(self._file)) as mirror:
                live = mirror.execute("select count(*) from __penstock_tables where state = 'live'")
                return int(live.fetchone()[0]) >= len(shop.TABLES)
        except sqlite3.Error:
            return False  # it is not there yet

    def checksums(self, source: str) -> Mapping[TableName, Checksum]:
        """Let the mirror apply what is left, and PostgreSQL say what its rows are."""
        self._end_following()
        asyncio.run(self._mirror().run(once=True))
        with contextlib.closing(sqlite3.connect(self._file)) as mirror, connect(source) as connection:
            copies = {table: _loaded(mirror, connection, table) for table in shop.TABLES}
            sums = checksums(connection, copies.values())
        return {table: sums[copy] for table, copy in copies.items()}

    def stop(self) -> None:
        self._end_following()
        self._server.stop()

    def _mirror(self) -> Mirror:
        access = ConsumerAccess((self._server.url,), USER, self._server.password)
        return Mirror(access, self._file)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(FeedMissing, asyncio.CancelledError):
                asyncio.run(self._followed())
            self._stopping.wait(_PAUSE)  # the pipeline has still to make its streams

    async def _followed(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if not self._stopping.is_set():
            await self._mirror().run()

    def _end_following(self) -> None:
        self._stopping.set()
        if self._running is not None:
            loop, task = self._running
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._thread.join()


def _loaded(mirror: sqlite3.Connection, connection: Connection, table: TableName) -> TableName:
    """Load a table of the mirror into a temporary one at the source."""
    copy = TableName("pg_temp", f"mirrored_{table.name}")
    rows = mirror.execute(f'select * from "{table.name}"')  # noqa: S608 -- a name of the shop's own
    names = sql.SQL(", ").join(sql.Identifier(column[0]) for column in rows.description)
    connection.execute(
        sql.SQL("create temporary table {} (like {})").format(
            sql.Identifier(copy.name), sql.Identifier(table.schema, table.name)
        )
    )
    command = sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(copy.schema, copy.name), names)
    with connection.cursor() as cursor, cursor.copy(command) as loading:
        for row in rows:
            loading.write_row([None if value is None else str(value) for value in row])
    return copy

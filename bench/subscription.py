"""PostgreSQL's own logical replication between the two servers: what a user would pick instead."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg import sql

from bench.servers import LOOK, SOURCE, Servers

NAME = "native"
"""Of the publication, the subscription, and the database it fills."""


class Subscription:
    """One publication, one subscription, as they are by default. It is enabled and disabled to take turns."""

    database = NAME

    def __init__(self, servers: Servers, tables: Sequence[str]) -> None:
        self._servers = servers
        with servers.at_source() as connection:
            connection.execute(
                sql.SQL("create publication {} for table {}").format(
                    sql.Identifier(NAME), sql.SQL(", ").join(map(sql.Identifier, tables))
                )
            )

    def create(self, *, enabled: bool = True) -> None:
        """Copies what is there, once it is enabled."""
        with self._servers.at_destination(NAME) as connection:
            connection.execute(
                sql.SQL(
                    "create subscription {name} connection {source} publication {name}"
                    " with (enabled = {enabled})"
                ).format(
                    name=sql.Identifier(NAME),
                    source=sql.Literal(self._servers.source.dsn(SOURCE)),
                    enabled=sql.Literal(enabled),
                )
            )

    def drop(self) -> None:
        """The slot goes with it."""
        with self._servers.at_destination(NAME) as connection:
            connection.execute(sql.SQL("drop subscription if exists {}").format(sql.Identifier(NAME)))

    def remove(self) -> None:
        self.drop()
        self._servers.drop_database(NAME)
        with self._servers.at_source() as connection:
            connection.execute(sql.SQL("drop publication {}").format(sql.Identifier(NAME)))

    def wait_until_ready(self) -> None:
        """Until every table is copied and follows the stream."""
        waiting = "select 1 from pg_subscription_rel where srsubstate <> 'r' limit 1"
        with self._servers.at_destination(NAME) as connection:
            while connection.execute(waiting.encode()).fetchone():
                time.sleep(LOOK)

    def release(self) -> None:
        self._alter("enable")

    def hold(self) -> None:
        """Returns when its processes are gone, at both ends."""
        self._alter("disable")
        running = "select 1 from pg_stat_subscription where pid is not null"
        with self._servers.at_destination(NAME) as connection:
            while connection.execute(running.encode()).fetchone():
                time.sleep(LOOK)
        sending = "select 1 from pg_replication_slots where slot_name = %s and active"
        with self._servers.at_source() as connection:
            while connection.execute(sending.encode(), (NAME,)).fetchone():
                time.sleep(LOOK)

    def _alter(self, how: str) -> None:
        with self._servers.at_destination(NAME) as connection:
            connection.execute(sql.SQL("alter subscription {} {}").format(sql.Identifier(NAME), sql.SQL(how)))

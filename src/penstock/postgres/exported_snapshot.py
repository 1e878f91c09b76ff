"""Transactions that see what an exported snapshot sees, and how they are set up.

A snapshot goes by its name and what it sees: after a crash of the server another one may have that name. One
of a user's own goes by its name alone.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from penstock.model import TableName
from penstock.model.errors import SnapshotLost
from penstock.postgres.connection import Connection

LOCK_WAIT = 500
"""Milliseconds for which a session waits for a lock, at most: it may have others already, which somebody
waits for. And at most half of `deadlock_timeout`, after which he is ended if we wait for him."""

_GONE_STATES = ("22023", "42704", "55000")
"""What `set transaction snapshot` says of a snapshot that is no longer exported, depending on the version."""

CURRENT = "select pg_catalog.pg_current_snapshot()::pg_catalog.text"


def settle(connection: Connection) -> None:
    """Set that no time limit ends a copy, except in waiting for a lock; that row-level security is an error
    rather than fewer rows; and that no view is read: who owns a schema can rename it, and another one to its
    name, past the lock on the table, and a view is a program of its owner's. Nor a foreign table, whose rows
    nobody follows: a partition can be one."""
    connection.execute(settings())


def settings() -> sql.Composed:
    """Return a statement that sets what the server knows of it: transaction_timeout came with 17."""
    return sql.SQL("""
        select set_config(name, case name when 'lock_timeout' then {}::text
                                          when 'restrict_nonsystem_relation_kind'
                                              then 'view, foreign-table'
                                          when 'row_security' then 'off' else '0' end, false)
        from pg_settings
        where name in ('lock_timeout', 'row_security', 'statement_timeout', 'transaction_timeout',
                       'idle_in_transaction_session_timeout', 'idle_session_timeout',
                       'restrict_nonsystem_relation_kind')
    """).format(lock_wait())


def lock_wait() -> sql.Composed:
    """Return an expression: for how many milliseconds to wait, on this server."""
    return sql.SQL("""(
        select greatest(1, least({}, setting::int8 / 2)) from pg_settings where name = 'deadlock_timeout'
    )""").format(sql.Literal(LOCK_WAIT))


def join(connection: Connection, snapshot: str, table: TableName | None = None) -> None:
    """Begin a transaction that sees what the exported snapshot sees, with this table locked."""
    settle(connection)
    connection.execute("begin isolation level repeatable read read only")
    if table is not None:
        connection.execute(lock(table))
    try:
        connection.execute(set_snapshot(snapshot))
    except psycopg.Error as error:
        raise gone(error, snapshot) or error from None
    refuse_another(snapshot, connection.execute(CURRENT).fetchall()[0][0])


def lock(table: TableName) -> sql.Composed:
    """Return a statement that locks a table before the snapshot is joined: if that is still exported then,
    the table was locked all the while, and has not been emptied since."""
    return sql.SQL("lock table only {} in access share mode").format(sql.Identifier(table.schema, table.name))


def set_snapshot(snapshot: str) -> sql.Composed:
    return sql.SQL("set transaction snapshot {}").format(sql.Literal(exported_name(snapshot)))


def exported_name(snapshot: str) -> str:
    return snapshot.partition("/")[0]


def refuse_another(snapshot: str, current: str) -> None:
    """Raise if a transaction sees something else than the snapshot that it was to join."""
    if snapshot.partition("/")[2] not in ("", current):
        raise SnapshotLost(f"another snapshot is called {exported_name(snapshot)} since the server crashed")


def gone(error: psycopg.Error, snapshot: str) -> SnapshotLost | None:
    """Return the error as `SnapshotLost` if it means that the snapshot ended."""
    if error.sqlstate in _GONE_STATES:
        return SnapshotLost(f"the snapshot {exported_name(snapshot)} is not exported any more")
    return None

"""Sessions at the destination, and what their errors mean.

A session speaks as the spool's text was written (`postgres.connection`), and where the role may, it writes as
PostgreSQL's own logical replication does: no triggers, no foreign keys, since the source has seen to both.

An error of the server concerns the whole destination (it is gone, it is full of connections), or one table:
then it may pass by itself, or it is a row that the table refuses, or the table is not as it should be.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.model import TableName
from penstock.model.errors import (
    ConnectionFailed,
    DestinationBusy,
    DestinationUnready,
    DestinationWentBack,
    ForeignKeyRefused,
    NotReady,
    PenstockError,
    RefusedAtTheEnd,
    RowRefused,
    TargetUnfit,
    WriteDenied,
)
from penstock.postgres.connection import Connection, connect, explain

OLDEST = 150000
"""MERGE came with PostgreSQL 15."""

_MEMORY = {"temp_buffers": "64MB", "work_mem": "32MB"}
"""So that a staging table, and the hash of one, need not go to disk: a tenth of the time for many changes."""
_LOCK_WAIT = {"lock_timeout": "10s"}
"""For a lock on what we keep there ourselves: who wants to stop us has not long to wait."""

_ALL_ROWS = {"row_security": "off"}
"""Where policies would hide rows from us that is an error, and no row stays that was deleted."""

_UNREAD = {"tcp_user_timeout": "300000"}
"""Milliseconds that the server may leave rows unread: a lock may keep it waiting in the middle of them."""

_UNREADY = re.compile(r"25006|53100")
"""It is read-only, it is full: for every table."""
_BUSY = re.compile(r"40P01|40001|55P03|57014|53...")
_PASSING = re.compile(f"{_UNREADY.pattern}|{_BUSY.pattern}")
_LEDGER_GONE = re.compile(r"42P01|3F000")
_OF_A_ROW = re.compile(r"22...|23...|P0001")


def open_session(conninfo: str, destination: str) -> Connection:
    """Open a session to write with, whose transactions begin with the first statement."""
    try:
        connection = connect(make_conninfo("", **{**_UNREAD, **conninfo_to_dict(conninfo)}))
    except PenstockError as error:
        raise error.at(destination=destination) from None
    try:
        _settle(connection)
    except psycopg.Error as error:
        connection.close()
        raise explain(error).at(destination=destination) from None
    if connection.info.server_version < OLDEST:
        version = connection.info.server_version // 10000
        connection.close()
        raise NotReady(
            f"the server is PostgreSQL {version}",
            destination=destination,
            remedy="The destination `postgres` needs PostgreSQL 15 or later",
        )
    connection.autocommit = False
    return connection


def _settle(connection: Connection) -> None:
    timeouts = ["statement_timeout", "idle_in_transaction_session_timeout"]
    if connection.info.server_version >= 170000:
        timeouts.append("transaction_timeout")
    for name in timeouts:
        connection.execute(sql.SQL("set {} = 0").format(sql.Identifier(name)))
    for name, value in (_MEMORY | _LOCK_WAIT | _ALL_ROWS).items():
        connection.execute(sql.SQL("set {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    # A role that may not: then triggers and foreign keys are at work, as for any other writer.
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("set session_replication_role = replica")


_idle: dict[tuple[int, str], list[Connection]] = {}
"""Sessions that this process (a Python worker of Spark serves many tasks) has open and does not use."""


@contextmanager
def session(conninfo: str, destination: str) -> Iterator[Connection]:
    """Yield a session for one transaction: committed at the end, rolled back and closed by an error. What the
    server says against it concerns the destination."""
    connection = _taken(conninfo) or open_session(conninfo, destination)
    try:
        yield connection
        _commit(connection)
    except psycopg.Error as error:
        connection.close()
        raise _of_destination(error).at(destination=destination) from None
    except ConnectionFailed as error:
        connection.close()
        raise error.at(destination=destination) from None
    except BaseException:
        connection.close()
        raise
    _idle.setdefault((os.getpid(), conninfo), []).append(connection)


def _commit(connection: Connection) -> None:
    try:
        connection.commit()
    except psycopg.Error as error:
        if not is_of_a_row(error):
            raise
        table = (error.diag.schema_name or "", error.diag.table_name or "")
        raise RefusedAtTheEnd(explain(error).reason, target=TableName(*table)) from None


def _taken(conninfo: str) -> Connection | None:
    """Return an idle session that is still open, if there is one: the server may have gone since."""
    idle = _idle.get((os.getpid(), conninfo), [])
    while idle:
        connection = idle.pop()
        if _is_quiet(connection):
            return connection
        connection.close()
    return None


def _is_quiet(connection: Connection) -> bool:
    """Whether the server has said nothing since: a session that it ended has a farewell to read, or the end.
    Asking it would take three round trips of every batch."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return not waiting.poll(0)


def close_idle(conninfo: str) -> None:
    for connection in _idle.pop((os.getpid(), conninfo), []):
        connection.close()


@contextmanager
def about(table: TableName) -> Iterator[None]:
    """Raise what the server refuses as an error of this table."""
    try:
        yield
    except psycopg.Error as error:
        raise of_table(error).at(table=table) from None
    except PenstockError as error:
        raise error.at(table=table) from None


def _of_destination(error: psycopg.Error) -> PenstockError:
    """Return the error of a statement that is for no table of the user's."""
    explained, state = explain(error), error.sqlstate or ""
    if _PASSING.fullmatch(state) and not isinstance(explained, ConnectionFailed):
        return DestinationUnready(explained.reason)
    if _LEDGER_GONE.fullmatch(state):
        return DestinationWentBack(f"what Penstock had recorded there is gone: {explained.reason}")
    return explained


def of_table(error: psycopg.Error) -> PenstockError:
    """Return the error as one of a table; of a wider scope if others cannot go on either."""
    explained = explain(error)
    state = error.sqlstate or ""
    if _UNREADY.fullmatch(state) and not _is_raised(error):
        return DestinationUnready(explained.reason)
    if isinstance(explained, ConnectionFailed) and error.diag.severity_nonlocalized != "ERROR":
        return explained  # a session that the server ends hears FATAL; a trigger can raise the same state
    if _BUSY.fullmatch(state):
        return DestinationBusy(explained.reason)
    if state == "42501":
        return WriteDenied(explained.reason)
    return (kind_of_refusal(error) if is_of_a_row(error) else TargetUnfit)(explained.reason)


def kind_of_refusal(error: psycopg.Error) -> type[RowRefused]:
    return ForeignKeyRefused if isinstance(error, psycopg.errors.ForeignKeyViolation) else RowRefused


def _is_raised(error: psycopg.Error) -> bool:
    """Whether somebody's function, such as a trigger's, raised it, and not the server."""
    return error.diag.source_function == "exec_stmt_raise"


def is_to_be_found(error: psycopg.Error, target: TargetTable) -> bool:
    """Whether the row that was refused is to be looked for."""
    waits = target.hasty and isinstance(error, psycopg.errors.ForeignKeyViolation)
    return is_of_a_row(error) and not waits


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether a value or a row was refused, and not the statement as such."""
    return bool(_OF_A_ROW.fullmatch(error.sqlstate or ""))

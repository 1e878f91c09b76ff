"""The rows of a part of a table as Arrow, typed or as text: what a task of a copy reads. Runs on executors.

ADBC reads PostgreSQL's binary COPY straight into Arrow. Its types are taken where they are exactly ours.
Every other column is asked for as text and goes through `typed`, as the stream's values do, so that a
value is the same whether it comes with the copy or with a change, and is refused by the same rule.

As text means: as the type's output function writes it, which is what the stream carries. `concat` gives
that; a cast to text does not (`true` for `t`, `10.0.0.1/32` for `10.0.0.1`, char(n) without its padding).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import adbc_driver_manager
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.changes.arrow_types import arrow_type
from penstock.changes.typed import first_refused, typed
from penstock.model import Column, TableName, TypeKind
from penstock.model.errors import ConnectionFailed, PenstockError, ValueRefused
from penstock.postgres.connection import SESSION_OPTIONS, with_session
from penstock.postgres.exported_snapshot import (
    CURRENT,
    exported_name,
    gone,
    lock,
    refuse_another,
    set_snapshot,
    settings,
)
from penstock.postgres.snapshot import CopyRange, refused
from penstock.spark.cdc.shapes import SHOWN

if TYPE_CHECKING:
    from adbc_driver_postgresql import dbapi

BATCH_BYTES = 4 << 20
AS_ADBC_HAS_IT = {"bool", "int2", "int4", "int8", "float4", "float8", "bytea"}

_BEGIN = "begin isolation level repeatable read read only"
_SAID = re.compile(r"(?:ERROR|FATAL|PANIC):\s+(.+?)(?:\. SQLSTATE: \w+)?$", re.MULTILINE)


def fetch_text(
    conninfo: str, snapshot: str, part: CopyRange, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Return the values of these columns as the text that the stream would carry."""
    chosen = sql.SQL(", ").join(_as_text(column) for column in columns)
    return _fetch(conninfo, snapshot, part, part.query(chosen))


def fetch_typed(
    conninfo: str, snapshot: str, part: CopyRange, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield the values of these columns in their types."""
    chosen = sql.SQL(", ").join(
        _as_is(column) if _is_direct(column) else _as_text(column) for column in columns
    )
    schema = pa.schema([(column.name, arrow_type(column.type)) for column in columns])
    for rows in _fetch(conninfo, snapshot, part, part.query(chosen)):
        arrays = [
            values if _is_direct(column) else typed_column(values, column, part.table)
            for column, values in zip(columns, rows.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def typed_column(text: pa.StringArray, column: Column, table: TableName) -> pa.Array:
    """Return the column typed as in the stream; the error names the value to blame."""
    try:
        return typed(text, column.type)
    except pa.ArrowInvalid:
        value = text[first_refused(text, column.type)].as_py()
        raise ValueRefused(
            f"a value does not fit {arrow_type(column.type)}",
            table=table,
            column=column.name,
            value=repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…"),
        ) from None


def _is_direct(column: Column) -> bool:
    base = column.type.base
    return base.kind is TypeKind.BASE and base.name in AS_ADBC_HAS_IT


def _as_is(column: Column) -> sql.Composable:
    """Cast to the base type: it may be a domain."""
    return sql.SQL("{}::pg_catalog.{}").format(
        sql.Identifier(column.name), sql.Identifier(column.type.base.name)
    )


def _as_text(column: Column) -> sql.Composable:
    """`is distinct from null`, since `is null` is also true of a row of nulls."""
    name = sql.Identifier(column.name)
    return sql.SQL("case when {} is distinct from null then pg_catalog.concat({}) end").format(name, name)


def _fetch(conninfo: str, snapshot: str, part: CopyRange, query: sql.Composed) -> Iterator[pa.RecordBatch]:
    from adbc_driver_postgresql import dbapi  # with it comes pandas, which nobody else waits for

    with (
        _explained(part.table),
        dbapi.connect(_named(conninfo, snapshot), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_session().as_string())
        cursor.execute(settings().as_string())
        cursor.execute(_BEGIN)
        cursor.execute(lock(part.table).as_string())
        _join(cursor, snapshot)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
        cursor.execute(query.as_string())
        yield from cursor.fetch_record_batch()


def session_name(snapshot: str) -> str:
    """Return the application name that readers of a snapshot have at the server."""
    return f"penstock copy {exported_name(snapshot)}"


def _named(conninfo: str, snapshot: str) -> str:
    return make_conninfo(with_session(conninfo), application_name=session_name(snapshot))


def _session() -> sql.Composed:
    """Return a statement that sets again what the connection asked for: libpq sends PGDATESTYLE past it."""
    settings = (
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(value))
        for name, value in SESSION_OPTIONS.items()
    )
    return sql.SQL("select {}").format(sql.SQL(", ").join(settings))


def _join(cursor: dbapi.Cursor, snapshot: str) -> None:
    try:
        cursor.execute(set_snapshot(snapshot).as_string())
    except adbc_driver_manager.Error as error:
        raise gone(_as_psycopg(error), snapshot) or error from None
    cursor.execute(CURRENT)
    (current,) = cursor.fetchall()[0]
    refuse_another(snapshot, current)


@contextmanager
def _explained(table: TableName) -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        raise error.at(table=table) from None
    except adbc_driver_manager.Error as error:
        raise refused(_as_psycopg(error)).at(table=table) from None
    except (pa.ArrowException, OSError) as error:
        raise ConnectionFailed(f"the copy broke off: {_said(str(error))}", table=table) from None


def _as_psycopg(error: adbc_driver_manager.Error) -> psycopg.Error:
    """Return the error as psycopg would have raised it, so that one rule explains both."""
    message = _said(str(error))
    try:
        return psycopg.errors.lookup(error.sqlstate or "")(message)
    except KeyError:
        return psycopg.OperationalError(message)


def _said(text: str) -> str:
    """Return the first line of what the server said, without ADBC's words and the query around it."""
    match = _SAID.search(text)
    return match[1] if match else text

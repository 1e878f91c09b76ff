"""A few changes, applied without a staging table: the rows go with the statements.

A staging table costs some milliseconds and rows in the server's catalogs, each time. Where many tables change
a little in each batch that would be most of the work. After that comes composing the statements, so their
text is kept from batch to batch. They are not prepared at the server: it shall plan for the table's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.net import MOVED, Net
from penstock.destinations.postgres.table import definition
from penstock.destinations.postgres.table.target_table import TargetTable, comma
from penstock.destinations.postgres.write.merge import merge, was
from penstock.postgres.connection import Connection

ROWS = 500
BYTES = 1 << 18

TABLES_KEPT = 1000
"""Of how many tables the statements are kept."""

Types = tuple[tuple[str, str], ...]
"""Columns of the target with their types."""


def are_few(target: TargetTable, net: Net) -> bool:
    """Whether these changes qualify for this fast path. What has to be filled in from the table is staged
    instead, and so are names of objects (`regclass`), whose cast from text differs from their input."""
    count = net.rows.num_rows + net.deletes.num_rows
    if count > ROWS or net.rows.nbytes > BYTES or len(net.kept.flatten()):
        return False
    return not any(column.type.base.name.startswith("reg") for column in target.delivery.table.columns)


def apply(connection: Connection, target: TargetTable, net: Net) -> None:
    types = definition.types_of(connection, target.name)
    statements = _statements(target, tuple((name, type.as_string()) for name, type in types.items()))
    gone = net.deletes
    if not target.append and net.rows.num_rows:
        moved = net.origin.filter(pc.equal(net.kind, pa.scalar(MOVED, pa.int8())))
        gone = pa.concat_tables([gone, moved])
    cursor = psycopg.RawCursor(connection)
    if gone.num_rows:
        cursor.execute(statements.delete, _arrays(gone), prepare=False)
    if net.rows.num_rows:
        cursor.execute(statements.merge, _arrays(net.rows), prepare=False)


@dataclass(frozen=True, slots=True)
class _Statements:
    """Each takes its rows as arrays of text, one for each column."""

    delete: bytes
    merge: bytes


@lru_cache(TABLES_KEPT)
def _statements(target: TargetTable, types: Types) -> _Statements:
    delete = sql.SQL("delete from {} t using {} s where {} and {}").format(
        target.identifier, _rows(target.key, dict(types), "o"), was(target), target.own("t")
    )
    return _Statements(delete.as_bytes(), merge(target, _rows(target.columns, dict(types), "c")).as_bytes())


def _rows(columns: Sequence[str], types: dict[str, str], letter: str) -> sql.Composable:
    """The rows as a subquery, in the types of the target's columns, named by place.

    Without modifiers: a cast to varchar(5) cuts what is too long, where an assignment refuses it.
    """
    names = [sql.Identifier(f"{letter}{number}") for number in range(len(columns))]
    parameters = [sql.SQL("${}::text[]").format(sql.Literal(number)) for number in range(1, len(columns) + 1)]
    cast = [
        sql.SQL("u.{0}::{1} as {0}").format(name, sql.SQL(types.get(column, "text")))
        for name, column in zip(names, columns, strict=True)
    ]
    return sql.SQL("(select {} from unnest({}) u ({}))").format(comma(cast), comma(parameters), comma(names))


def _arrays(rows: pa.Table) -> list[str]:
    """Return each column as the text of an array."""
    return ["{" + ",".join(map(_element, column.to_pylist())) + "}" for column in rows.columns]


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

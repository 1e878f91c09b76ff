"""Schema changes as SQL: `ddl.txt`.

Where the source tells its own statements those are written; where it does not, what became of the columns is
put into statements again. Either way whoever runs them on the table as it was gets the table that the changes
after them are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from penstock.destinations.protocol import SchemaChange
from penstock.model import Column, TableName
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Statement:
    at: datetime
    tag: str
    text: str


def text(table: TableName, batch: datetime, statements: Sequence[Statement]) -> bytes:
    lines = [f"-- Batch: {batch.isoformat()}", f"-- Table: {_comment(str(table))}", ""]
    for one in statements:
        lines += [f"-- [{one.at:%Y-%m-%d %H:%M:%S}] {one.tag}", one.text.rstrip().rstrip(";") + ";", ""]
    return "\n".join([*lines, "-- End of DDL for batch", ""]).encode()


def _comment(name: str) -> str:
    return name.replace("\n", " ").replace("\r", " ")


def statements(
    connection: Connection, table: TableName, change: SchemaChange, at: datetime
) -> list[Statement]:
    """What is to be done to follow a change of columns: first renamed, then dropped, added and retyped. The
    connection is to the source, which knows what its types are called."""
    name = _quoted(table.schema, table.name)
    clauses = [f"rename column {_quoted(old)} to {_quoted(new)}" for old, new in change.renamed]
    clauses += [f"drop column {_quoted(column)}" for column in change.dropped]
    for column, missing in change.added:
        default = f" default {sql.Literal(missing).as_string(None)}" if missing is not None else ""
        clauses.append(f"add column {_quoted(column.name)} {_type(connection, column)}{default}")
    clauses += [
        f"alter column {_quoted(column.name)} type {_type(connection, column)}" for column in change.retyped
    ]
    return [Statement(at, "ALTER TABLE", f"alter table {name} {clause};") for clause in clauses]


def _quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)


def _type(connection: Connection, column: Column) -> str:
    row = connection.execute(
        "select format_type(oid, %s) from pg_type where oid = %s", (column.type.modifier, column.type.oid)
    ).fetchone()
    return str(row[0]) if row else _quoted(column.type.name)

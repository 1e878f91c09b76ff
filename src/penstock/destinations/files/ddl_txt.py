"""Schema changes as SQL: `ddl.txt`.

What became of the columns is put into statements: whoever runs them on the table as it was gets the table
that the changes after them are for. What the source recorded stands there as comments, with its time and
tag: a command of somebody's may be part of a longer text, name tables by a search path, or concern an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from penstock.destinations.schema_change import Add, Drop, Rename, Retype, SchemaChange, Step
from penstock.model import Column, TableName, TableSchema
from penstock.model.ddl import DdlEvent
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class SchemaNotes:
    """What is to be told of a table's schema before some of its changes."""

    recorded: tuple[DdlEvent, ...] = ()
    statements: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.recorded or self.statements)

    def text(self, table: TableName, batch: datetime) -> bytes:
        lines = [f"-- Batch: {batch.isoformat()}", *_comment(f"Table: {table}"), ""]
        for event in self.recorded:
            lines += [f"-- [{event.at:%Y-%m-%d %H:%M:%S}] {event.tag}", *_comment(f"  {event.command}"), ""]
        for statement in self.statements:
            lines += [statement, ""]
        return "\n".join([*lines, "-- End of DDL for batch", ""]).encode()


def _comment(text: str) -> list[str]:
    return [f"-- {line}" for line in text.rstrip().splitlines()]


def statements(connection: Connection, table: TableSchema, change: SchemaChange) -> tuple[str, ...]:
    """Return the statements that follow a change of columns, after which the table is as given here. The
    connection is to the source, which knows what its types are called."""
    name, steps = _quoted(table.name.schema, table.name.name), change.steps(table.column_names)
    return tuple(f"alter table {name} {_clause(connection, step)};" for step in steps)


def _clause(connection: Connection, step: Step) -> str:
    match step:
        case Drop(name):
            return f"drop column {_quoted(name)}"
        case Rename(old, new):
            return f"rename column {_quoted(old)} to {_quoted(new)}"
        case Add(column, value):
            default = f" default {sql.Literal(value).as_string(None)}" if value is not None else ""
            return f"add column {_quoted(column.name)} {_type(connection, column)}{default}"
        case Retype(column):
            return f"alter column {_quoted(column.name)} type {_type(connection, column)}"


def _quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)


def _type(connection: Connection, column: Column) -> str:
    row = connection.execute(
        "select format_type(oid, %s) from pg_type where oid = %s", (column.type.modifier, column.type.oid)
    ).fetchone()
    return str(row[0]) if row else _quoted(column.type.name)

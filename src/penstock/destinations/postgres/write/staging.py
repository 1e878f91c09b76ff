"""The staging table: changes as rows, beside the table they are for.

It is temporary, without constraints, and its columns have the types of the target's, so that statements
compare and move values without any conversion. Columns are named by place (`c0`, `c1`, … the values, `o0`, …
the key a row had before), so that no name of the user's can collide with one of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa
from psycopg import sql

from penstock.changes.copy_text import copy_text
from penstock.destinations.postgres.table.target_table import TargetTable, comma
from penstock.destinations.postgres.write.merge import origin, value
from penstock.destinations.prefetch import ahead
from penstock.postgres.connection import Connection

LARGE = 5000
"""Rows from which on the planner should know what keys are in the table. Of all columns it would cost a tenth
of the whole work; without any it chooses plans that cost as much."""

_numbers = count(1)

Values: TypeAlias = pa.StringArray | pa.ChunkedArray


class Stage:
    """A context: the table is there inside, and at the latest gone with the transaction."""

    def __init__(
        self, connection: Connection, target: TargetTable, extra: Sequence[sql.Composable] = ()
    ) -> None:
        self.connection = connection
        self.target = target
        self.identifier = sql.Identifier("pg_temp", f"penstock_stage_{next(_numbers)}")
        self._extra = extra

    def __enter__(self) -> Stage:
        self.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.drop()

    def make(self) -> None:
        target = self.target
        values = [
            sql.SQL("t.{} as {}").format(sql.Identifier(name), value(number))
            for number, name in enumerate(target.columns)
        ]
        origins = [
            sql.SQL("t.{} as {}").format(sql.Identifier(name), origin(number))
            for number, name in enumerate(target.key)
        ]
        self.connection.execute(
            sql.SQL("create temp table {} on commit drop as select {} from {} t with no data").format(
                self.identifier, comma([*values, *origins, *self._extra]), target.identifier
            )
        )

    def drop(self) -> None:
        self.connection.execute(sql.SQL("drop table {}").format(self.identifier))

    def add(self, columns: Iterable[tuple[sql.Composable, Values]]) -> int:
        """Add rows into these columns of the stage, the others being NULL; return how many."""
        pairs = list(columns)
        copied = copy_in(
            self.connection, self.identifier, [name for name, _ in pairs], [values for _, values in pairs]
        )
        if copied >= LARGE and self.target.key:
            self.connection.execute(sql.SQL("analyze {} ({})").format(self.identifier, comma(self._keys())))
        return copied

    def _keys(self) -> list[sql.Identifier]:
        key = self.target.key
        values = [value(self.target.columns.index(name)) for name in key]
        return values + [origin(number) for number in range(len(key))]


def copy_in(
    connection: Connection,
    table: sql.Composable,
    columns: Sequence[sql.Composable],
    values: Sequence[Values],
) -> int:
    """Copy rows of text into a table; return how many."""
    blocks = copy_text(values)
    many = bool(values) and len(values[0]) >= LARGE
    return copy_lines(connection, table, columns, ahead(blocks) if many else blocks)


def copy_lines(
    connection: Connection,
    table: sql.Composable,
    columns: Sequence[sql.Composable],
    blocks: Iterable[bytes | memoryview],
    format: str = "text",
) -> int:
    """Copy rows in one of COPY's formats into a table; return how many."""
    statement = sql.SQL("copy {} ({}) from stdin (format {})").format(
        table, comma(columns), sql.Identifier(format)
    )
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for block in blocks:
                copy.write(block)
        return int(cursor.rowcount)

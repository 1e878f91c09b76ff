"""One table of the source in SQLite: how it is created, filled and changed.

Names may be anything in PostgreSQL; SQLite takes them in quotes, but does not tell `a` from `A`. A column
whose name is taken in that sense gets a number behind it.

A row of a table without a key is found by all of its values, NULL being equal to NULL, and if there are
several such rows, one of them is meant.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any

from penstock.consumer.documents import RowChange, TableDescription
from penstock.consumer.sqlite_values import Converter, converter, declared

OURS = "__penstock_"
"""How names begin that are the mirror's own."""
MISFITS = (
    *(KeyError, TypeError, ValueError, OverflowError, RecursionError),
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
)
"""What comes of a row that the table, or SQLite, cannot take."""
_MOST_INDEXED = 16
"""Columns of the index by which rows without a key are looked for."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return names that SQLite tells apart, from each other and from those that are taken."""
    used = {name.lower() for name in taken}
    chosen = []
    for name in names:
        candidate, number = name, 1
        while candidate.lower() in used:
            number += 1
            candidate = f"{name}_{number}"
        used.add(candidate.lower())
        chosen.append(candidate)
    return chosen


class MirrorTable:
    """The statements for a table under one version of its schema."""

    def __init__(self, description: TableDescription, name: str) -> None:
        self.name = name
        self._columns = description.column_names
        self._key = description.row_key
        names = [quoted(column) for column in distinct(self._columns)]
        self._declarations = [
            f"{column} {declared(each.data_type)}".rstrip()
            for column, each in zip(names, description.columns, strict=True)
        ]
        self._quoted = dict(zip(self._columns, names, strict=True))
        self._converters: dict[str, Converter] = {
            each.name: converter(each.data_type) for each in description.columns
        }
        self._row = _row_id(self._columns)
        self._into = quoted(name)
        self._insert = f"insert into {self._into} ({', '.join(names)}) values ({', '.join('?' * len(names))})"
        if not names:
            self._insert = f"insert into {self._into} default values"
        self._updates: dict[tuple[str, ...], str] = {}
        if self._key:
            where = " and ".join(f"{self._quoted[column]} = ?" for column in self._key)
        else:
            same = " and ".join(f"{column} is ?" for column in names) or "true"
            row, table = self._row, self._into
            where = f"{row} = (select {row} from {table} where {same} limit 1)"
        self._where = where
        self._delete = f"delete from {self._into} where {where}"

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the table, empty."""
        # SQLite has no table without columns.
        parts = self._declarations or ["__penstock_no_columns"]
        if self._key:
            key = ", ".join(self._quoted[column] for column in self._key)
            parts = [*parts, f"primary key ({key})"]
        connection.execute(f"create table {self._into} ({', '.join(parts)})")
        if not self._key and self._columns:
            indexed = ", ".join(self._quoted[column] for column in self._columns[:_MOST_INDEXED])
            name = f"{OURS}rows_{token_hex(8)}"  # it keeps its name when the table is renamed
            connection.execute(f"create index {name} on {self._into} ({indexed})")

    def fill(self, connection: sqlite3.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of a snapshot. Raises one of MISFITS where that cannot be."""
        connection.executemany(self._insert, (self._values(row, self._columns) for row in rows))

    def apply(self, connection: sqlite3.Connection, change: RowChange) -> bool:
        """Apply a change; whether that was possible: another table than ours was changed otherwise."""
        try:
            match change.operation:
                case "INSERT":
                    values = self._values(change.data, self._columns)
                    if len(values) != len(change.data):
                        return False
                    count = connection.execute(self._insert, values).rowcount
                case "UPDATE":
                    count = self._update(connection, change)
                case "DELETE":
                    count = connection.execute(self._delete, self._found_by(change)).rowcount
                case _:
                    connection.execute(f"delete from {self._into}")
                    return True
        except MISFITS:
            return False
        return count == 1

    def _update(self, connection: sqlite3.Connection, change: RowChange) -> int:
        """Update a row; returns how many were: 0 also where the columns are not ours."""
        unchanged = set(change.unchanged)
        sent = tuple(column for column in self._columns if column not in unchanged)
        if len(sent) != len(change.data):
            return 0
        statement = self._updates.get(sent)
        if statement is None:
            assigned = ", ".join(f"{self._quoted[column]} = ?" for column in sent)
            statement = f"update {self._into} set {assigned} where {self._where}"
            if not sent:
                row = self._row
                statement = f"update {self._into} set {row} = {row} where {self._where}"
            self._updates[sent] = statement
        values = self._values(change.data, sent)
        return connection.execute(statement, values + self._found_by(change)).rowcount

    def _found_by(self, change: RowChange) -> list[Any]:
        """The values by which the changed row is found. Raises KeyError where they are not given."""
        columns = self._key or self._columns
        given = change.old if change.old.keys() >= set(columns) else change.data
        if not self._key and change.operation == "UPDATE" and columns:
            given = change.old
        return self._values(given, columns)

    def _values(self, row: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
        converters = self._converters
        return [converters[column](row[column]) for column in columns]


def _row_id(columns: Iterable[str]) -> str:
    """How SQLite's own number of a row can be asked for beside these columns."""
    taken = {column.lower() for column in columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), "rowid")

"""Proof that a stream says what the source holds: rebuild the tables from it, compare row for row.

`Rebuild` applies changes in order, strictly: a change to a row that is not there, or a row that is there
already, is a problem, so that a lost or doubled change shows even where the end result happens to agree.
`checksums` sums up tables at the source; `Rebuild.checksum` sums up the same for what was rebuilt.

A checksum does not depend on the order of rows: it is the sum, over all rows, of the first eight bytes of
the MD5 of the row's text. In that text every value stands behind its length, and NULL is `~`, so no two
different rows have the same one. Values are the text of their output functions, which depends on the
session's settings: take connections from `penstock.postgres.connection.connect`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import IsolationLevel, sql

from penstock.model import Lsn, TableName
from penstock.model.events import Row
from penstock.postgres.connection import Connection
from penstock.spool.segment import BeforeKind, Op

NO_NAME = TableName("", "")
"""The table of a logical message."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the spool with its schema looked up."""

    commit_lsn: Lsn
    seq: int
    op: Op
    table: TableName
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    """The columns that identify a row; none where the whole row does (identity full or nothing)."""
    before_kind: BeforeKind = BeforeKind.NONE
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[int, ...] = ()
    xid: int = 0
    committed_at: datetime | None = None

    def __str__(self) -> str:
        parts = [f"{self.commit_lsn}#{self.seq} {self.op.name.lower()} {self.table} xid {self.xid}"]
        for name, row in ((f"before ({self.before_kind.name.lower()})", self.before), ("after", self.after)):
            parts += [f"{name} {brief(row)}"] if row is not None else []
        return " ".join(parts) + (f" unchanged {self.unchanged}" if self.unchanged else "")


def brief(row: Row) -> str:
    """A row for people: long values are cut short."""
    shown = ["null" if v is None else repr(v if len(v) <= 40 else f"{v[:30]}… {len(v)}") for v in row]
    return f"({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Checksum:
    rows: int
    total: int

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Checksum:
        count = total = 0
        for row in rows:
            count += 1
            total += int.from_bytes(hashlib.md5(_row_text(row)).digest()[:8], signed=True)
        return cls(count, total)


def _row_text(row: Row) -> bytes:
    encoded = [None if value is None else value.encode() for value in row]
    return b"".join(b"~" if value is None else b"%d:%b" % (len(value), value) for value in encoded)


def checksums(connection: Connection, tables: Iterable[TableName]) -> dict[TableName, Checksum]:
    """The checksums of tables at the source, all of one moment."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    try:
        with connection.transaction():
            return {table: _checksum(connection, table) for table in tables}
    finally:
        connection.isolation_level = None


def _checksum(connection: Connection, table: TableName) -> Checksum:
    """`concat` prints a value as its output function does; a cast to text would not (`true` for `t`)."""
    name = sql.Identifier(table.schema, table.name)
    columns = connection.execute(sql.SQL("select * from {} limit 0").format(name)).description or ()
    value = sql.SQL(
        "case when num_nulls({0}) = 1 then '~' else octet_length(concat({0})) || ':' || concat({0}) end"
    )
    texts = [value.format(sql.Identifier("t", column.name)) for column in columns]
    query = sql.SQL(
        """
        select count(*), coalesce(sum(('x' || substr(md5({row}), 1, 16))::bit(64)::bigint::numeric), 0)
          from {table} t
        """
    ).format(row=sql.SQL(" || ").join(texts) if texts else sql.Literal(""), table=name)
    found = connection.execute(query).fetchone()
    assert found is not None
    return Checksum(found[0], int(found[1]))


@dataclass(slots=True)
class RebuiltTable:
    """Rows found by their key, or by all of their values where there is no key (then also several)."""

    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    found: dict[Row, list[Row]] = field(default_factory=dict)
    _places: tuple[int, ...] = ()

    def rows(self) -> list[Row]:
        return [row for bucket in self.found.values() for row in bucket]

    def become(self, columns: tuple[str, ...], key: tuple[str, ...], new: str | None = None) -> None:
        """Follow a schema: columns are matched by name, those that were not there hold `new`."""
        rows = self.rows()
        if columns != self.columns:
            places = [self.columns.index(name) if name in self.columns else None for name in columns]
            rows = [tuple(new if place is None else row[place] for place in places) for row in rows]
        self.columns, self.key = columns, key
        self._places = tuple(columns.index(name) for name in key)
        self.found = {}
        for row in rows:
            self.found.setdefault(self.key_of(row), []).append(row)

    def key_of(self, row: Row) -> Row:
        return tuple(row[place] for place in self._places) if self.key else row

    def put(self, row: Row) -> bool:
        """Whether there was room: a second row of the same key takes the first one's place."""
        bucket = self.found.setdefault(self.key_of(row), [])
        free = not (self.key and bucket)
        if not free:
            bucket.clear()
        bucket.append(row)
        return free

    def take(self, key: Row) -> Row | None:
        bucket = self.found.get(key)
        if not bucket:
            return None
        row = bucket.pop()
        if not bucket:
            del self.found[key]
        return row


class Rebuild:
    """The tables as a stream of changes tells them."""

    def __init__(self) -> None:
        self.tables: dict[TableName, RebuiltTable] = {}
        self.problems: list[str] = []
        self.applied = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes, which come in the order of `(commit_lsn, seq)`."""
        for change in changes:
            self.applied += 1
            if change.op is not Op.MESSAGE:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        table = self.tables.setdefault(change.table, RebuiltTable())
        if change.op is Op.TRUNCATE:
            table.found.clear()
            return
        if (change.columns, change.key) != (table.columns, table.key):
            table.become(change.columns, change.key)
        old: Row | None = None
        if change.op is not Op.INSERT:
            identified = change.before if change.before is not None else change.after
            assert identified is not None, f"nothing to find a row by: {change}"
            old = table.take(table.key_of(identified))
            if old is None:
                self.problems.append(f"there is no such row: {change}")
        if change.after is not None:
            row = list(change.after)
            for place in change.unchanged:
                row[place] = old[place] if old is not None else None
            if not table.put(tuple(row)):
                self.problems.append(f"there is such a row already: {change}")

    def rows(self, table: TableName) -> list[Row]:
        return self.tables[table].rows() if table in self.tables else []

    def checksum(self, table: TableName) -> Checksum:
        return Checksum.of(self.rows(table))

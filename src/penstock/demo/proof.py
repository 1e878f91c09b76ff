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

from psycopg import IsolationLevel, sql

from penstock.model import ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.events import Row
from penstock.postgres.connection import Connection
from penstock.spool.changes import Change
from penstock.spool.segment import Op


def brief(row: Row) -> str:
    """Return a row for people: long values are cut short."""
    shown = ["null" if v is None else repr(v if len(v) <= 40 else f"{v[:30]}… {len(v)}") for v in row]
    return f"({', '.join(shown)})"


def describe(change: Change) -> str:
    """Return a change for people."""
    name = change.table.name if change.table else "-"
    parts = [f"{change.commit_lsn}#{change.seq} {change.op.name.lower()} {name} xid {change.xid}"]
    if change.before is not None:
        parts.append(f"before ({change.before_kind.name.lower()}) {brief(change.before)}")
    if change.after is not None:
        parts.append(f"after {brief(change.after)}")
    return " ".join(parts) + (f" unchanged {change.unchanged}" if change.unchanged else "")


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
    """Return the checksums of tables at the source, all of one moment."""
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
    row = connection.execute(query).fetchone()
    assert row is not None
    return Checksum(row[0], int(row[1]))


@dataclass(slots=True)
class RebuiltTable:
    """Rows found by their key, or by all of their values where there is no key (then also several)."""

    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    buckets: dict[Row, list[Row]] = field(default_factory=dict)
    schema: TableSchema | None = None
    """The last one followed."""
    _places: tuple[int, ...] = ()

    def rows(self) -> list[Row]:
        return [row for bucket in self.buckets.values() for row in bucket]

    def follow(self, schema: TableSchema) -> None:
        if schema is not self.schema:
            self.become(schema.column_names, identifying(schema))
            self.schema = schema

    def become(self, columns: tuple[str, ...], key: tuple[str, ...], new: str | None = None) -> None:
        """Take another shape: columns are matched by name, those that were not there hold `new`."""
        if (columns, key) == (self.columns, self.key):
            return
        rows = self.rows()
        if columns != self.columns:
            places = [self.columns.index(name) if name in self.columns else None for name in columns]
            rows = [tuple(new if place is None else row[place] for place in places) for row in rows]
        self.columns, self.key = columns, key
        self._places = tuple(columns.index(name) for name in key)
        self.buckets = {}
        for row in rows:
            self.buckets.setdefault(self.key_of(row), []).append(row)

    def key_of(self, row: Row) -> Row:
        return tuple(row[place] for place in self._places) if self.key else row

    def put(self, row: Row) -> bool:
        """Put a row; return False if it took the place of another one of the same key."""
        bucket = self.buckets.setdefault(self.key_of(row), [])
        free = not (self.key and bucket)
        if not free:
            bucket.clear()
        bucket.append(row)
        return free

    def take(self, key: Row) -> Row | None:
        bucket = self.buckets.get(key)
        if not bucket:
            return None
        row = bucket.pop()
        if not bucket:
            del self.buckets[key]
        return row


def identifying(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that identify a row; none where only the whole row does."""
    if schema.identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
        return ()
    return tuple(column.name for column in schema.columns if column.key)


class Rebuild:
    """The tables as a stream of changes tells them."""

    def __init__(self) -> None:
        self.tables: dict[TableId, RebuiltTable] = {}
        self.problems: list[str] = []
        self.applied = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes, which come in the order of `(commit_lsn, seq)`."""
        for change in changes:
            self.applied += 1
            if change.table is not None:
                self._apply(change, change.table)

    def _apply(self, change: Change, schema: TableSchema) -> None:
        table = self.tables.setdefault(schema.id, RebuiltTable())
        table.follow(schema)
        if change.op is Op.TRUNCATE:
            table.buckets.clear()
            return
        old: Row | None = None
        if change.op is not Op.INSERT:
            identified = change.before if change.before is not None else change.after
            assert identified is not None, f"nothing to find a row by: {describe(change)}"
            old = table.take(table.key_of(identified))
            if old is None:
                self.problems.append(f"there is no such row: {describe(change)}")
        if change.after is not None:
            row = list(change.after)
            for place in change.unchanged:
                row[place] = old[place] if old is not None else None
            if not table.put(tuple(row)):
                self.problems.append(f"there is such a row already: {describe(change)}")

    def checksum(self, name: TableName) -> Checksum:
        """Return the checksum of the table that last had this name in the stream; of no rows where none
        had."""
        named = [table for table in self.tables.values() if table.schema and table.schema.name == name]
        return Checksum.of(row for table in named for row in table.rows())

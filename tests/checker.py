"""The checker of random workloads: did exactly what happened at the source arrive?

Two judges, to be asked both. `Replica` rebuilds the tables from the changes and compares them with the
source. `Ledger` knows the exact sequence of changes: it reads a second slot, made before the workload
began, through SQL and the oldest protocol, with a parser of its own; nothing may be missing, doubled,
altered or out of order.

    ledger = Ledger(database, "scenario").create()     # beside the captured slot
    workload.run(); capture until it has caught up
    changes = list(changes_of_spool(spool))
    assert not ledger.difference(changes)
    assert not Replica(changes).difference(database, workload.tables)

Both return the difference as text for people, empty where there is none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from psycopg import sql

from penstock.capture.messages import HEARTBEAT_PREFIX, Reader
from penstock.demo.proof import Rebuild, RebuiltTable, brief, describe
from penstock.model import ZERO, Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.events import Row
from penstock.postgres.connection import Connection, connect
from penstock.spool import segment
from penstock.spool.changes import Change, changes
from penstock.spool.manifest import Manifest, SegmentEntry
from penstock.spool.segment import BeforeKind, Op, SegmentPart
from tests.bed import Database

SCHEMA_CHANGES = TableName("public", "schema_changes")
"""A row of this table tells what a schema change did to the rows of others: the stream itself does not."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def changes_of_spool(path: Path, start: Lsn | None = None) -> Iterator[Change]:
    """All that the spool holds, in its order. That each part is in order by itself is asserted too."""
    with closing(Manifest.open(path)) as manifest:
        begin, end = manifest.retired if start is None else start, manifest.position
        for entry in manifest.entries(begin, end):
            for part in entry.segment.parts:
                _assert_in_order(path, entry, part)
        yield from changes(manifest, begin, end)


def _assert_in_order(path: Path, entry: SegmentEntry, part: SegmentPart) -> None:
    """Bulk readers take a part as it lies."""
    batches = segment.read(path / entry.segment.file, part)
    places = [
        place
        for batch in batches
        for place in zip(batch["commit_lsn"].to_pylist(), batch["seq"].to_pylist(), strict=True)
    ]
    assert places == sorted(places), f"{entry.segment.file} is not in order"
    assert entry.start.value <= places[0][0] <= places[-1][0] < entry.end.value, (
        f"{entry.segment.file} holds what is not of [{entry.start}, {entry.end})"
    )


def text_rows(connection: Connection, table: TableName) -> tuple[tuple[str, ...], list[Row]]:
    """Columns and rows of a table, each value as PostgreSQL prints it."""
    query = sql.SQL("select * from {}").format(sql.Identifier(table.schema, table.name))
    result = connection.execute(query).pgresult
    assert result is not None
    columns = tuple((result.fname(n) or b"").decode() for n in range(result.nfields))
    values = (
        tuple(None if (v := result.get_value(r, c)) is None else v.decode() for c in range(len(columns)))
        for r in range(result.ntuples)
    )
    return columns, list(values)


def rows_difference(expected: Iterable[Row], actual: Iterable[Row], shown: int = 5) -> str:
    """What rows one side has and the other has not, however often; empty where they are the same."""
    there, here = Counter(expected), Counter(actual)
    lines = []
    for title, rows in (("missing", there - here), ("too many", here - there)):
        if rows:
            lines.append(f"{title}: {rows.total()} rows")
            lines += [f"    {brief(row)}" for row in list(rows.elements())[:shown]]
    return "\n".join(lines)


class Replica(Rebuild):
    """The tables rebuilt from changes, schema changes followed."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        super().__init__()
        self.apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            super().apply([change])
            if change.table and change.table.name == SCHEMA_CHANGES and change.after:
                self._follow(json.loads(change.after[1] or ""))

    def _follow(self, ddl: dict[str, Any]) -> None:
        """What a schema change did to the rows of its tables (a partitioned one's leaves are among them)."""
        for table in (self.tables[id] for id in map(TableId, ddl["tables"]) if id in self.tables):
            match ddl["did"]:
                case "add", column, value:
                    table.become((*table.columns, column), table.key, value)
                case "drop", column:
                    key = () if column in table.key else table.key  # which goes with it
                    table.become(tuple(c for c in table.columns if c != column), key)
                case "rename", column, to:
                    table.columns = tuple(to if c == column else c for c in table.columns)
                    table.key = tuple(to if c == column else c for c in table.key)

    def difference(self, source: Database, tables: Iterable[TableName]) -> str:
        """How the tables differ from the source, and what was wrong on the way."""
        lines = [f"while rebuilding: {problem}" for problem in self.problems[:5]]
        with connect(source.dsn) as connection:
            for name in tables:
                columns, rows = text_rows(connection, name)
                table = self.tables.get(_table_id(connection, name), RebuiltTable(columns))
                if set(table.columns) != set(columns):
                    lines.append(f"{name}: columns {table.columns} where the source has {columns}")
                    continue
                table.become(columns, table.key)
                if found := rows_difference(rows, table.rows()):
                    lines.append(f"{name}: {found}")
        return "\n".join(lines)


def _table_id(connection: Connection, name: TableName) -> TableId:
    quoted = sql.Identifier(name.schema, name.name).as_string(connection)
    return TableId(connection.execute("select %s::regclass::oid", (quoted,)).fetchall()[0][0])


class Ledger:
    """An independent record of the exact sequence of changes."""

    def __init__(self, database: Database, publication: str, slot: str | None = None) -> None:
        self._database = database
        self._publication = publication
        self._slot = slot or f"ledger_{database.name}"

    def create(self) -> Ledger:
        self._database.query(
            "select pg_create_logical_replication_slot(%s, 'pgoutput') is not null", self._slot
        )
        return self

    def changes(self) -> list[Change]:
        """What the slot holds; reading does not move it."""
        with connect(self._database.dsn) as connection:
            messages = connection.execute(
                """
                select lsn - '0/0', data
                  from pg_logical_slot_peek_binary_changes(
                           %s, null, null, 'proto_version', '1', 'publication_names', %s, 'messages', 'true')
                """,
                (self._slot, '"' + self._publication.replace('"', '""') + '"'),
                binary=True,
            )
            return list(_Parser().parse((Lsn(int(lsn)), data) for lsn, data in messages))

    def difference(self, actual: Iterable[Change], shown: int = 5) -> str:
        return sequence_difference(self.changes(), list(actual), shown)


def sequence_difference(expected: Sequence[Change], actual: Sequence[Change], shown: int = 5) -> str:
    """Where two sequences of changes part, and what each has that the other has not."""
    expected, actual = _ties_settled(expected), _ties_settled(actual)
    pairs = zip(map(_said, expected), map(_said, actual), strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    if at == len(expected) == len(actual):
        return ""
    lines = [f"{len(expected)} changes expected, {len(actual)} found; they part at number {at}"]
    for title, side in (("expected", expected), ("found", actual)):
        lines += [f"  {title}:", *(f"    {describe(change)}" for change in side[max(at - 1, 0) : at + shown])]
    there, here = Counter(map(_place, expected)), Counter(map(_place, actual))
    for title, places in (("missing", there - here), ("too many", here - there)):
        if places:
            named = ", ".join(f"{commit}#{seq}" for commit, seq in list(places.elements())[:shown])
            lines.append(f"  {title}: {places.total()} changes: {named}")
    return "\n".join(lines)


def _ties_settled(changes: Sequence[Change]) -> list[Change]:
    """Messages before the changes that stand at the same position.

    PostgreSQL gives a transactional message the position where its record ends, and that is where the next
    record begins. If that one is of another subtransaction, which of the two comes first is left to the heap
    that merges subtransactions: two slots can tell the same transaction in two orders.
    """
    settled: list[Change] = []
    for _, group in groupby(changes, lambda change: (change.commit_lsn, change.xid, change.lsn)):
        tied = list(group)
        in_order = sorted(tied, key=lambda change: change.op is not Op.MESSAGE)
        settled += [replace(change, seq=at.seq) for at, change in zip(tied, in_order, strict=True)]
    return settled


def _place(change: Change) -> tuple[Lsn, int]:
    return change.commit_lsn, change.seq


def _said(change: Change) -> tuple[object, ...]:
    """What must be the same: not names of tables, since PostgreSQL goes on using a partitioned table's old
    one for a while; not types and versions, which the ledger does not know; and an immediate message was
    not committed at all."""
    schema = change.table
    shape = (schema.id, schema.column_names, schema.key) if schema else None
    committed_at = change.committed_at if change.xid else None
    rest = (change.before_kind, change.before, change.after, change.unchanged, change.xid, committed_at)
    return (*_place(change), change.lsn, change.op, shape, *rest)


class _Parser:
    """pgoutput, protocol 1, into changes. Types are but their oids, and versions all the same."""

    def __init__(self) -> None:
        self._tables: dict[int, TableSchema] = {}
        self._seq = 0
        self._lsn = self._commit = ZERO
        self._time = _EPOCH
        self._xid = 0

    def parse(self, messages: Iterable[tuple[Lsn, bytes]]) -> Iterator[Change]:
        for self._lsn, data in messages:
            message = Reader(data, self._lsn)
            kind = chr(message.int8())
            if kind == "B":
                self._commit, self._time = message.position(), _EPOCH + _microseconds(message)
                self._xid, self._seq = message.uint32(), 0
            elif kind == "R":
                self._relation(message)
            elif kind in "IUD":
                yield self._row(Op(ord(kind)), message)
            elif kind == "T":
                yield from self._truncate(message)
            elif kind == "M":
                yield from self._message(message)

    def _change(self, op: Op, table: TableSchema | None, after: Row | None) -> Change:
        self._seq += 1
        return Change(
            table, op, self._commit, self._lsn, self._seq - 1, self._xid, self._time,
            BeforeKind.NONE, before=None, after=after, unchanged=(),
        )  # fmt: skip

    def _relation(self, message: Reader) -> None:
        table = TableId(message.uint32())
        name = TableName(message.text() or "pg_catalog", message.text())
        identity = ReplicaIdentity(chr(message.int8()))
        columns = []
        for _ in range(message.int16()):
            flags, column = message.int8(), message.text()
            type = ColumnType(message.uint32(), "", message.int32())
            columns.append(Column(column, type, key=bool(flags & 1)))
        self._tables[table] = TableSchema(table, 1, name, identity, tuple(columns))

    def _row(self, op: Op, message: Reader) -> Change:
        change = self._change(op, self._tables[message.uint32()], None)
        tag = chr(message.int8())
        if tag in "KO":
            kind = BeforeKind.KEY if tag == "K" else BeforeKind.FULL
            change = replace(change, before_kind=kind, before=_tuple(message)[0])
            tag = chr(message.int8()) if op is Op.UPDATE else ""
        if tag == "N":
            after, unchanged = _tuple(message)
            change = replace(change, after=after, unchanged=unchanged)
        message.end()
        return change

    def _truncate(self, message: Reader) -> Iterator[Change]:
        count, options = message.int32(), message.int8()
        named = tuple(name for bit, name in ((1, "cascade"), (2, "restart identity")) if options & bit)
        for table in [message.uint32() for _ in range(count)]:
            yield self._change(Op.TRUNCATE, self._tables[table], named)

    def _message(self, message: Reader) -> Iterator[Change]:
        transactional, lsn, prefix = message.int8() == 1, message.position(), message.text()
        content = "\\x" + message.take(message.int32()).hex()
        if prefix == HEARTBEAT_PREFIX:
            return
        said = (prefix, "transactional" if transactional else "immediate", content)
        change = self._change(Op.MESSAGE, None, said)
        if not transactional:
            # It comes with the end of its record, where the next commit may begin: its last byte is its own.
            change = replace(change, commit_lsn=Lsn(lsn.value - 1), seq=0, xid=0)
        yield change


def _microseconds(message: Reader) -> timedelta:
    return timedelta(microseconds=message.int64())


def _tuple(message: Reader) -> tuple[Row, tuple[int, ...]]:
    values: list[str | None] = []
    unchanged = []
    for place in range(message.int16()):
        kind = chr(message.int8())
        if kind == "u":
            unchanged.append(place)
        values.append(message.take(message.int32()).decode() if kind == "t" else None)
    return tuple(values), tuple(unchanged)

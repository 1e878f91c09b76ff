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

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg import sql
from tests.bed import Database

from penstock.capture.messages import Reader
from penstock.demo.proof import NO_NAME, Change, Rebuild, brief
from penstock.model import ZERO, Lsn, ReplicaIdentity, TableId, TableName
from penstock.model.events import Row
from penstock.postgres.connection import Connection, connect
from penstock.spool import segment
from penstock.spool.manifest import Manifest
from penstock.spool.segment import BeforeKind, Op

DDL = "scenario.ddl"
"""Messages of this prefix tell what a schema change did to the rows: the stream itself does not."""
HEARTBEAT = "penstock.heartbeat"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_WHOLE_ROW = (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING)


def changes_of_spool(path: Path, start: Lsn | None = None) -> Iterator[Change]:
    """All that the spool holds, in order. That each part is in order by itself is asserted on the way."""
    manifest = Manifest.open(path)
    try:
        schemas = manifest.schemas()
        entries = manifest.entries(manifest.retired if start is None else start, manifest.position)
    finally:
        manifest.close()
    rows = []
    for entry in entries:
        for part in entry.segment.parts:
            batches = segment.read(path / entry.segment.file, part)
            found = [row for batch in batches for row in batch.to_pylist()]
            places = [(row["commit_lsn"], row["seq"]) for row in found]
            assert places == sorted(places), f"{entry.segment.file} is not in order"
            assert all(entry.start.value <= commit < entry.end.value for commit, _ in places), (
                f"{entry.segment.file} holds what is not of [{entry.start}, {entry.end})"
            )
            rows += found
    for row in sorted(rows, key=lambda row: (row["commit_lsn"], row["seq"])):
        message = row["op"] == Op.MESSAGE
        schema = None if message else schemas[TableId(row["table_id"]), row["schema_version"]]
        yield Change(
            commit_lsn=Lsn(row["commit_lsn"]),
            seq=row["seq"],
            op=Op(row["op"]),
            table=schema.name if schema else NO_NAME,
            columns=schema.column_names if schema else (),
            key=tuple(c.name for c in schema.columns if c.key)
            if schema and schema.identity not in _WHOLE_ROW
            else (),
            before_kind=BeforeKind(row["before_kind"]),
            before=None if row["before"] is None else tuple(row["before"]),
            after=None if row["after"] is None else tuple(row["after"]),
            unchanged=tuple(row["unchanged"] or ()),
            xid=row["xid"],
            committed_at=row["committed_at"],
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
            if change.op is Op.MESSAGE and change.after and change.after[0] == DDL:
                self._follow(json.loads(bytes.fromhex((change.after[2] or "")[2:])))

    def _follow(self, ddl: dict[str, Any]) -> None:
        """What a schema change did to the rows of its tables (a partitioned one has several names)."""
        for name in itertools.starmap(TableName, ddl["tables"]):
            table = self.tables.get(name)
            if table is None or not table.columns:
                continue
            match ddl["did"]:
                case "add", column, value:
                    table.become((*table.columns, column), table.key, value)
                case "drop", column:
                    table.become(tuple(c for c in table.columns if c != column), table.key)
                case "rename", column, to:
                    table.columns = tuple(to if c == column else c for c in table.columns)
                    table.key = tuple(to if c == column else c for c in table.key)
                case "move", to:
                    self.tables[TableName(name.schema, to)] = self.tables.pop(name)

    def difference(self, source: Database, tables: Iterable[TableName]) -> str:
        """How the tables differ from the source, and what was wrong on the way."""
        lines = [f"while rebuilding: {problem}" for problem in self.problems[:5]]
        with connect(source.dsn) as connection:
            for name in tables:
                columns, rows = text_rows(connection, name)
                table = self.tables.get(name)
                if table is not None and table.columns and set(table.columns) != set(columns):
                    lines.append(f"{name}: columns {table.columns} where the source has {columns}")
                    continue
                if table is not None:
                    table.become(columns, table.key)
                if found := rows_difference(rows, self.rows(name)):
                    lines.append(f"{name}: {found}")
        return "\n".join(lines)


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
    if expected == actual:
        return ""
    pairs = zip(expected, actual, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    lines = [f"{len(expected)} changes expected, {len(actual)} found; they part at number {at}"]
    for title, side in (("expected", expected), ("found", actual)):
        lines += [f"  {title}:", *(f"    {change}" for change in side[max(at - 1, 0) : at + shown])]
    there, here = Counter(map(_place, expected)), Counter(map(_place, actual))
    for title, places in (("missing", there - here), ("too many", here - there)):
        if places:
            named = ", ".join(f"{Lsn(commit)}#{seq}" for commit, seq in list(places.elements())[:shown])
            lines.append(f"  {title}: {places.total()} changes: {named}")
    return "\n".join(lines)


def _place(change: Change) -> tuple[int, int]:
    return change.commit_lsn.value, change.seq


class _Parser:
    """pgoutput, protocol 1, into changes. Names and values only: no types, no versions."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[TableName, tuple[str, ...], tuple[str, ...]]] = {}
        self._seq = 0
        self._commit = ZERO
        self._time = _EPOCH
        self._xid = 0

    def parse(self, messages: Iterable[tuple[Lsn, bytes]]) -> Iterator[Change]:
        for lsn, data in messages:
            message = Reader(data, lsn)
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

    def _change(self, op: Op, table: int, **values: object) -> Change:
        name, columns, key = self._tables[table] if table else (NO_NAME, (), ())
        change = Change(self._commit, self._seq, op, name, columns, key, **values)  # type: ignore[arg-type]
        self._seq += 1
        return change

    def _relation(self, message: Reader) -> None:
        table = message.uint32()
        name = TableName(message.text() or "pg_catalog", message.text())
        identity = ReplicaIdentity(chr(message.int8()))
        columns, key = [], []
        for _ in range(message.int16()):
            flags, column, _, _ = message.int8(), message.text(), message.uint32(), message.int32()
            columns.append(column)
            if flags & 1 and identity not in _WHOLE_ROW:
                key.append(column)
        self._tables[table] = name, tuple(columns), tuple(key)

    def _row(self, op: Op, message: Reader) -> Change:
        table = message.uint32()
        values: dict[str, object] = {"xid": self._xid, "committed_at": self._time}
        tag = chr(message.int8())
        if tag in "KO":
            values["before_kind"] = BeforeKind.KEY if tag == "K" else BeforeKind.FULL
            values["before"], _ = _tuple(message)
            tag = chr(message.int8()) if op is Op.UPDATE else ""
        if tag == "N":
            values["after"], values["unchanged"] = _tuple(message)
        message.end()
        return self._change(op, table, **values)

    def _truncate(self, message: Reader) -> Iterator[Change]:
        count, options = message.int32(), message.int8()
        named = tuple(name for bit, name in ((1, "cascade"), (2, "restart identity")) if options & bit)
        for table in [message.uint32() for _ in range(count)]:
            yield self._change(Op.TRUNCATE, table, after=named, xid=self._xid, committed_at=self._time)

    def _message(self, message: Reader) -> Iterator[Change]:
        transactional, lsn, prefix = message.int8() == 1, message.position(), message.text()
        content = "\\x" + message.take(message.int32()).hex()
        if prefix == HEARTBEAT:
            return
        if transactional:
            after = (prefix, "transactional", content)
            yield self._change(Op.MESSAGE, 0, after=after, xid=self._xid, committed_at=self._time)
        else:
            yield Change(lsn, 0, Op.MESSAGE, NO_NAME, after=(prefix, "immediate", content))


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

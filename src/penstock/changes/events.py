"""Changes as plain objects (`penstock.model.events`), made from the spool's rows wherever those are read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.model import Lsn, TableSchema
from penstock.model.events import Begin, Commit, Delete, Event, Insert, Message, Relation, Truncate, Update
from penstock.spool.segment import BeforeKind, Op


class PlacedRow(NamedTuple):
    """A row of the spool and the schema that it has."""

    values: dict[str, Any]
    table: TableSchema | None
    """None: it is a logical message."""
    is_first: bool = False
    """Whether the schema is to be told before it."""

    @property
    def place(self) -> tuple[int, int]:
        return self.values["commit_lsn"], self.values["seq"]

    @property
    def truncated_at(self) -> int | None:
        """Return where in the WAL the TRUNCATE is, which may have emptied other tables, too; else None."""
        return self.values["lsn"] if self.values["op"] == Op.TRUNCATE else None


def placed_rows(batches: Iterable[pa.RecordBatch], table: TableSchema | None) -> Iterator[PlacedRow]:
    is_first = table is not None
    for batch in batches:
        for values in batch.to_pylist():
            yield PlacedRow(values, table, is_first)
            is_first = False


def transactions(streams: Iterable[Iterator[PlacedRow]]) -> Iterator[Event]:
    """Merge streams, each in the order of the source, into the transactions that their rows are of."""
    merged = heapq.merge(*streams, key=lambda row: row.place)
    for commit, rows in groupby(merged, key=lambda row: row.place[0]):
        yield from _transaction(Lsn(commit), rows)


def _transaction(commit: Lsn, rows: Iterator[PlacedRow]) -> Iterator[Event]:
    last = first = next(rows)
    at = first.values["committed_at"]
    yield Begin(Lsn(first.values["lsn"]), commit, at, first.values["xid"])
    for truncated_at, group in groupby(_with_first(first, rows), key=lambda row: row.truncated_at):
        emptied: list[PlacedRow] = []
        for last in group:
            if last.is_first and last.table is not None:
                yield Relation(Lsn(last.values["lsn"]), commit, last.table)
            if truncated_at is not None:
                emptied.append(last)
            else:
                yield _message(commit, last.values) if last.table is None else _change(commit, last)
        if emptied:
            yield _truncate(commit, emptied)
    yield Commit(Lsn(last.values["lsn"]), commit, 0, commit, at)


def _with_first(first: PlacedRow, rows: Iterator[PlacedRow]) -> Iterator[PlacedRow]:
    yield first
    yield from rows


def _truncate(commit: Lsn, rows: list[PlacedRow]) -> Truncate:
    """One statement empties several tables: they share its place in the WAL."""
    values = rows[0].values
    words = set(values["after"] or ())
    options = ("cascade" in words) | ("restart identity" in words) << 1
    ids = tuple(row.table.id for row in rows if row.table is not None)
    return Truncate(Lsn(values["lsn"]), commit, values["seq"], options, ids)


def _message(commit: Lsn, values: dict[str, Any]) -> Message:
    prefix, kind, content = values["after"]
    data = bytes.fromhex((content or "").removeprefix("\\x"))
    return Message(Lsn(values["lsn"]), commit, values["seq"], kind == "transactional", prefix, data)


def _change(commit: Lsn, row: PlacedRow) -> Event:
    values, table = row.values, row.table
    assert table is not None
    lsn, seq = Lsn(values["lsn"]), values["seq"]
    after, unchanged = tuple(values["after"] or ()), tuple(values["unchanged"] or ())
    kind, before = values["before_kind"], values["before"]
    old = None if kind == BeforeKind.NONE else (kind == BeforeKind.KEY, tuple(before))
    match values["op"]:
        case Op.INSERT:
            return Insert(lsn, commit, seq, table.id, after, unchanged)
        case Op.UPDATE:
            return Update(lsn, commit, seq, table.id, after, old, unchanged)
        case _:
            return Delete(lsn, commit, seq, table.id, old)

"""Which row each change is about: changes of one table, told apart by key.

A *line* is one row on its way through the changes, whatever key it has at the moment. As long as no key
changes, a line is a key, and everything is a column operation: keys become numbers (`KeyCodes`), and the
number is the line. Only changes of keys that occur in some change of a key are followed one by one.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import RowColumns, completed, offsets_of
from penstock.model import TableSchema
from penstock.model.errors import SpoolDamaged
from penstock.spool.segment import BeforeKind, Op

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NONE = -1
"""In the place of a key's number: the row was not there."""


class ChangePart:
    """The changes of one record batch, without truncates, taken apart."""

    def __init__(self, changes: pa.RecordBatch, table: TableSchema) -> None:
        width = len(table.columns)
        self.changes = changes
        self.op: npt.NDArray[np.int8] = np.asarray(changes["op"])
        self.deleted: Mask = self.op == Op.DELETE
        self.unsent_rows, self.unsent_places, after = _sent(changes, table)
        self.after = RowColumns(after, width)
        if not np.array_equal(self.after.valid, ~self.deleted):
            raise SpoolDamaged("a change lacks its new row", table=table.name)

    def __len__(self) -> int:
        return len(self.op)

    @property
    def only_inserts(self) -> bool:
        """Whether there is nothing but inserts, of whole rows."""
        return not len(self.unsent_rows) and bool((self.op == Op.INSERT).all())

    @cached_property
    def before(self) -> RowColumns:
        before = RowColumns(self.changes["before"], self.after.width)
        if (self.deleted & ~before.valid).any():
            raise SpoolDamaged("a delete does not say of which row")
        return before

    def current(self, place: int) -> pa.StringArray:
        """A column after the change; for a delete, of the old row."""
        if not self.deleted.any():
            return self.after.column(place)
        return pc.if_else(pa.array(self.deleted), self.before.column(place), self.after.column(place))

    def moved(self, key: Sequence[int]) -> Ints:
        """Return the changes that give a row another key."""
        if not (np.asarray(self.changes["before_kind"])[self.op == Op.UPDATE] != BeforeKind.NONE).any():
            return np.empty(0, np.int64)
        rows = np.flatnonzero((self.op == Op.UPDATE) & self.before.valid)
        other = np.zeros(len(rows), np.bool_)
        for place in key:
            new = self.after.values.take(pa.array(self.after.first[rows] + place))
            old = self.before.values.take(pa.array(self.before.first[rows] + place))
            differs = pc.fill_null(pc.not_equal(new, old), False)
            other |= np.asarray(pc.or_(differs, pc.xor(new.is_null(), old.is_null())))
        return rows[other]

    def old(self, rows: Ints, place: int) -> pa.StringArray:
        """A column of the old rows of these changes."""
        return self.before.values.take(pa.array(self.before.first[rows] + place))


def _sent(changes: pa.RecordBatch, table: TableSchema) -> tuple[Ints, Ints, pa.ListArray]:
    """The cells (row, place) whose value is not known, and the new rows, completed from the old ones.

    A full old row has every value; a key alone has the key's, among which may be one that the new row lacks.
    """
    unchanged = changes["unchanged"]
    rows = np.asarray(pc.list_parent_indices(unchanged), np.int64)
    if not len(rows):
        return rows, rows, changes["after"]
    places = np.asarray(unchanged.flatten(), np.int64)
    in_key = np.zeros(len(table.columns), np.bool_)
    in_key[list(table.key)] = True
    kinds = np.asarray(changes["before_kind"])[rows]
    in_old = (kinds == BeforeKind.FULL) | ((kinds == BeforeKind.KEY) & in_key[places])
    if not in_old.any():
        return rows, places, changes["after"]
    lengths = np.bincount(rows[in_old], minlength=len(changes))
    from_old = pa.ListArray.from_arrays(offsets_of(lengths), pa.array(places[in_old], pa.int32()))
    as_full = pa.array(np.full(len(changes), BeforeKind.FULL, np.int8))
    names = ["before_kind", "before", "after", "unchanged"]
    columns = [as_full, changes["before"], changes["after"], from_old]
    after = completed(pa.record_batch(columns, names), len(table.columns))
    return rows[~in_old], places[~in_old], after


def since_truncate(changes: Sequence[pa.RecordBatch]) -> tuple[bool, list[pa.RecordBatch]]:
    """Return whether there was a truncate, and what comes after the last one."""
    kept: list[pa.RecordBatch] = []
    for batch in reversed(changes):
        truncates = np.flatnonzero(np.asarray(batch["op"]) == Op.TRUNCATE)
        if len(truncates):
            kept.append(batch.slice(truncates[-1] + 1))
            break
        kept.append(batch)
    else:
        return False, [batch for batch in reversed(kept) if len(batch)]
    return True, [batch for batch in reversed(kept) if len(batch)]


class KeyCodes:
    """Keys as numbers from 0 on: the same number for the same text, NULL being equal to NULL."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._columns = columns
        self.codes, self.count = _encoded(columns[0])
        for column in columns[1:]:
            codes, count = _encoded(column)
            self.codes, self.count = _encoded(pa.chunked_array([pa.array(self.codes * count + codes)]))

    @cached_property
    def _where(self) -> Ints:
        where = np.empty(self.count, np.int64)
        where[self.codes] = np.arange(len(self.codes))
        return where

    def texts(self, codes: Ints) -> list[pa.ChunkedArray]:
        """The key's columns for these numbers; NULLs for `NONE`."""
        absent = codes == NONE
        where = self._where[np.where(absent, 0, codes)] if self.count else codes
        places = pa.array(where, mask=absent if absent.any() else None)
        return [column.take(places) for column in self._columns]


def _encoded(column: pa.ChunkedArray) -> tuple[Ints, int]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    if not encoded.num_chunks:
        return np.empty(0, np.int64), 0
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in encoded.chunks])
    return codes.astype(np.int64), len(encoded.chunk(encoded.num_chunks - 1).dictionary)


@dataclass(frozen=True, slots=True)
class RowLines:
    keys: KeyCodes
    op: npt.NDArray[np.int8]
    code: Ints
    """Per change: the key after it; of a delete, the key it had."""
    source: Ints
    """Per change: the key before it; another one only where the change is one of the key."""
    line: Ints
    """Per change: the line."""
    origin: Ints
    """Per line: the key of the row that was there before all changes, or NONE."""

    @property
    def count(self) -> int:
        return len(self.origin)

    def last(self) -> Ints:
        """Per line: its last change; -1 if it has none."""
        last = np.full(self.count, -1, np.int64)
        last[self.line] = np.arange(len(self.line))  # of several, numpy keeps the last
        return last


def lines_of(parts: Sequence[ChangePart], key: Sequence[int]) -> RowLines:
    """Return the lines of all changes; the key is given as the places of its columns."""
    op = np.concatenate([part.op for part in parts])
    moved = [part.moved(key) for part in parts]
    columns = [
        [part.current(place) for part in parts]
        + [part.old(rows, place) for part, rows in zip(parts, moved, strict=True)]
        for place in key
    ]
    keys = KeyCodes([pa.chunked_array(column) for column in columns])
    firsts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    moves = np.concatenate([rows + first for rows, first in zip(moved, firsts, strict=True)])
    code = keys.codes[: len(op)]
    source = code.copy()
    source[moves] = keys.codes[len(op) :]
    return _followed(keys, op, code, source)


def _followed(keys: KeyCodes, op: npt.NDArray[np.int8], code: Ints, source: Ints) -> RowLines:
    """Keys that are no part of a change of keys are lines; the others' changes are followed one by one."""
    moves = source != code
    involved = np.zeros(keys.count, np.bool_)
    involved[code[moves]] = involved[source[moves]] = True
    slow = np.flatnonzero(involved[code])

    first = np.full(keys.count, -1, np.int64)
    first[code[::-1]] = np.arange(len(op))[::-1]
    was_there = (first >= 0) & (op[first] != Op.INSERT) & ~involved
    walk = _Walk(keys.count)
    line = code.copy()
    line[slow] = [
        walk.step(*change)
        for change in zip(op[slow].tolist(), source[slow].tolist(), code[slow].tolist(), strict=True)
    ]
    origin = np.where(was_there, np.arange(keys.count), NONE)
    return RowLines(keys, op, code, source, line, np.concatenate([origin, np.array(walk.origins, np.int64)]))


class _Walk:
    """Follows rows from key to key."""

    def __init__(self, first_line: int) -> None:
        self.origins: list[int] = []
        self._first_line = first_line
        self._there: dict[int, int] = {}
        """The line that has the key now."""
        self._seen: set[int] = set()
        """Keys of which it is known whether they are there."""

    def step(self, op: int, source: int, target: int) -> int:
        """The line of a change from one key to another."""
        line = self._there.pop(source, None)
        if line is None:
            line = self._first_line + len(self.origins)
            self.origins.append(NONE if op == Op.INSERT or source in self._seen else source)
        self._seen.add(source)
        self._seen.add(target)
        if op != Op.DELETE:
            self._there[target] = line
        return line

"""Every version of every row, for destinations that keep them: from when until when it was so.

A version is what a key held at the end of a transaction; what happens inside one does not show. It lasts
until the next transaction that touches the key, and it is `deleted` if the key is not there any more after
that one: removed, or given up for another key. Where rows swap keys, each key goes on with other values.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.new_rows import gathered
from penstock.changes.row_lines import NONE, ChangePart, Ints, Mask, RowLines, lines_of
from penstock.model import TableSchema
from penstock.spool.segment import SCHEMA, Op


@dataclass(frozen=True, slots=True)
class Versions:
    """What changes without a truncate among them say. All but `closed` has a line for each version."""

    rows: pa.Table
    """All columns, in the order of the changes."""
    at: pa.Array
    """When the transaction committed that made it."""
    until: pa.Array
    """When that one committed which ended it; null: it lasts."""
    deleted: pa.BooleanArray
    """Whether it ended because its key is there no more."""
    kept: pa.ListArray
    """The places of columns whose value PostgreSQL never sent: that of the version at `origin`."""
    origin: pa.Table
    """Where something is kept: the key of the version, open before all these changes, that has it."""
    closed: pa.Table
    """The keys of versions that were open before and end now; last, the columns `at` and `deleted`."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """Everything that is open ends here, as deleted."""

    at: datetime


def versions(
    changes: Sequence[pa.RecordBatch], table: TableSchema, key: Sequence[str]
) -> list[Versions | Truncated]:
    """Return what to do, in this order, for changes of one table under one schema."""
    steps: list[Versions | Truncated] = []
    for batches, emptied in _between_truncates(changes):
        if emptied is not None:
            steps.append(Truncated(emptied))
        parts = [ChangePart(batch, table) for batch in batches if len(batch)]
        if parts:
            steps.append(_versions(parts, table, key))
    return steps


def _between_truncates(
    changes: Sequence[pa.RecordBatch],
) -> Iterator[tuple[list[pa.RecordBatch], datetime | None]]:
    """Stretches of changes, each with the time of the truncate before it.

    What the transaction of a truncate did before it never showed: it is left out.
    """
    if not changes:
        return
    whole = pa.Table.from_batches(changes)
    op, commit = whole["op"].to_numpy(), whole["commit_lsn"].to_numpy()
    truncates = np.flatnonzero(op == Op.TRUNCATE)
    first, emptied = 0, None
    for place, begin in zip(truncates, np.searchsorted(commit, commit[truncates]), strict=True):
        if first <= begin:
            yield whole.slice(first, begin - first).to_batches(), emptied
        first, emptied = int(place) + 1, whole["committed_at"][int(place)].as_py()
    yield whole.slice(first).to_batches(), emptied


@dataclass(frozen=True, slots=True)
class _Touched:
    """What each transaction left of each key that it touched: in order of keys, then of transactions."""

    code: Ints
    change: Ints
    """The last change that touched the key in the transaction."""
    there: Mask
    """Whether the key is there after it."""
    opened: Mask
    """Per key: whether it was there before all changes."""

    @classmethod
    def of(cls, lines: RowLines, commit: Ints) -> _Touched:
        moves = np.flatnonzero(lines.source != lines.code)
        # A change touches the key it gives; before that, if it takes a row from another key, that one.
        change = np.concatenate([moves, np.arange(len(lines.op))])
        code = np.concatenate([lines.source[moves], lines.code])
        there = np.concatenate([np.zeros(len(moves), np.bool_), lines.op != Op.DELETE])
        was = np.concatenate([np.ones(len(moves), np.bool_), lines.op != Op.INSERT])
        was[len(moves) + moves] = False
        order = np.lexsort((change, code)) if len(moves) else np.argsort(code, kind="stable")
        change, code = change[order], code[order]

        new_key = np.r_[True, code[1:] != code[:-1]]
        new = new_key[1:] | (np.diff(commit[change]) != 0)
        last = np.flatnonzero(np.r_[new, True])
        return cls(code[last], change[last], there[order[last]], was[order[np.flatnonzero(new_key)]])


def _versions(parts: Sequence[ChangePart], table: TableSchema, key: Sequence[str]) -> Versions:
    lines = lines_of(parts, [table.column_names.index(name) for name in key])
    commit, times = _numbers(parts, "commit_lsn"), _numbers(parts, "committed_at")
    touched = _Touched.of(lines, commit)
    new_key = np.r_[True, touched.code[1:] != touched.code[:-1]]
    lasts = np.r_[new_key[1:], True]
    until = np.r_[times[touched.change[1:]], 0]
    gone = np.r_[~touched.there[1:], False] & ~lasts

    added = np.flatnonzero(touched.there)
    added = added[np.argsort(touched.change[added])]
    rows = touched.change[added]
    new = gathered(parts, lines, rows, len(table.columns))
    lacks = np.asarray(pc.list_value_length(new.kept)) > 0
    origin = np.where(lacks, lines.origin[lines.line[rows]], NONE)

    ended = np.flatnonzero(new_key)[touched.opened]
    closed = [
        *lines.keys.texts(touched.code[ended]),
        _times(times[touched.change[ended]]),
        pa.array(~touched.there[ended]),
    ]
    return Versions(
        pa.table(new.columns, list(table.column_names)),
        _times(times[rows]),
        _times(until[added], lasts[added]),
        pa.array(gone[added]),
        new.kept,
        pa.table(lines.keys.texts(origin), list(key)),
        pa.table(closed, [*key, "at", "deleted"]),
    )


def _numbers(parts: Sequence[ChangePart], name: str) -> Ints:
    return np.concatenate([np.asarray(part.changes[name].cast(pa.int64())) for part in parts])


def _times(microseconds: Ints, absent: Mask | None = None) -> pa.Array:
    return pa.array(microseconds, pa.int64(), mask=absent).cast(SCHEMA.field("committed_at").type)

"""What many changes of one table come to, per key.

A destination that holds a table as it is writes the net change of a batch, not its history: of a thousand
updates of one row the last one, of a row that came and went nothing. Rows that changed their key are told
with the key they came from, so that values which PostgreSQL did not send (`kept`) can be taken from there.

To apply a `Net`: take what is kept from the rows at `origin`; delete `deletes`, and the rows at the origins;
then insert `rows`. In this order it is right also when rows swap keys.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.new_rows import all_rows, gathered
from penstock.changes.row_lines import NONE, ChangePart, Ints, Mask, RowLines, lines_of, since_truncate
from penstock.model import TableSchema
from penstock.spool.segment import Op

INSERTED, UPDATED, MOVED = ord("I"), ord("U"), ord("M")


@dataclass(frozen=True, slots=True)
class Net:
    truncated: bool
    """The table was emptied first."""
    deletes: pa.Table
    """Keys of rows that were there before and are gone."""
    rows: pa.Table
    """Rows that are there afterwards, all columns, in the order of their last change."""
    kind: pa.Array
    """Per row: I, its key was not there before; U, it was; M, the row was there under another key."""
    origin: pa.Table
    """Per row: the key of the row it was before; NULLs for I."""
    kept: pa.ListArray
    """Per row: the places of columns whose value PostgreSQL never sent: that of the row at `origin` stays."""


def net_changes(
    changes: Sequence[pa.RecordBatch], table: TableSchema, key: Sequence[str], *, again: bool = False
) -> Net:
    """Return the net change of changes, in order, of one table under one schema. `again`: some of them may
    have been written before, so `deletes` has all keys that no row has in the end."""
    truncated, batches = since_truncate(changes)
    parts = [ChangePart(batch, table) for batch in batches]
    if all(part.only_inserts for part in parts):
        return _all_new(parts, table, key, truncated)
    places = [table.column_names.index(name) for name in key]
    lines = lines_of(parts, places)
    last = lines.last()
    there = last >= 0
    there[there] = lines.op[last[there]] != Op.DELETE
    gone = (last >= 0) & ~there & (lines.origin != NONE) & (not truncated)
    origin = np.full(lines.count, NONE) if truncated else _reborn(lines, last, there, gone)

    rows = np.sort(last[there])
    new = gathered(parts, lines, rows, len(table.columns))
    origins, codes = origin[lines.line[rows]], lines.code[rows]
    kind = np.where(origins == NONE, INSERTED, np.where(origins == codes, UPDATED, MOVED))
    own = [new.columns[place] for place in places]
    old = _ended(lines, rows, origins[kind == MOVED]) if again else lines.origin[gone]
    return Net(
        truncated,
        pa.table(lines.keys.texts(old), list(key)),
        pa.table(new.columns, list(table.column_names)),
        pa.array(kind, pa.int8()),
        pa.table(_origins(lines, origins, kind, own), list(key)),
        new.kept,
    )


def _all_new(parts: Sequence[ChangePart], table: TableSchema, key: Sequence[str], truncated: bool) -> Net:
    """Nothing but inserts: keys do not matter."""
    new = all_rows(parts, len(table.columns))
    count = len(new.kept)
    return Net(
        truncated,
        pa.table([pa.nulls(0, pa.string()) for _ in key], list(key)),
        pa.table(new.columns, list(table.column_names)),
        pa.array(np.full(count, INSERTED, np.int8)),
        pa.table([pa.nulls(count, pa.string()) for _ in key], list(key)),
        new.kept,
    )


def _ended(lines: RowLines, rows: Ints, moved: Ints) -> Ints:
    """Return the keys that no row has in the end, but for those that rows moved from."""
    touched = np.concatenate([lines.code, lines.source])
    return np.setdiff1d(touched, np.concatenate([lines.code[rows], moved]))


def _reborn(lines: RowLines, last: Ints, there: Mask, gone: Mask) -> Ints:
    """The lines' origins, where a new row under the key of a deleted one counts as the old row changed.

    A key that is no part of a change of keys is one line from the start; this finds the others, and takes
    them out of `gone`.
    """
    new = np.flatnonzero(there & (lines.origin == NONE))
    old = np.flatnonzero(gone)
    if not len(old) or not len(new) or lines.count == lines.keys.count:
        return lines.origin
    line_gone = np.full(lines.keys.count, -1, np.int64)
    line_gone[lines.origin[old]] = old
    code = lines.code[last[new]]
    reborn = line_gone[code] >= 0
    gone[line_gone[code[reborn]]] = False
    origin = lines.origin.copy()
    origin[new[reborn]] = code[reborn]
    return origin


def _origins(
    lines: RowLines, origins: Ints, kind: Ints, own: Sequence[pa.ChunkedArray]
) -> Sequence[pa.ChunkedArray]:
    if (kind == MOVED).any():
        return lines.keys.texts(origins)
    if (kind == UPDATED).all():
        return own
    return [pc.if_else(pa.array(kind == UPDATED), column, pa.scalar(None, pa.string())) for column in own]

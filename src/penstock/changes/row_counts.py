"""What many changes of a table without a key come to: how often each row was added or removed.

Rows without a key may be there several times, and one is as good as the other: all that can be said of a
change is that a row with these values came or went. An update is the old row gone and the new one come.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import RowColumns
from penstock.changes.row_lines import ChangePart, since_truncate
from penstock.model import TableSchema
from penstock.model.errors import OldRowUnsent
from penstock.spool.segment import BeforeKind, Op

COUNT = "_count"


@dataclass(frozen=True, slots=True)
class Tally:
    truncated: bool
    """The table was emptied first."""
    rows: pa.Table
    """The table's columns and, last, `_count`: how often the row is to be added, or, below 0, removed.

    Each row is there once, by its text; where nothing is removed a row may be listed more than once instead,
    with 1 each time, which saves comparing them.
    """


def net_rows(changes: Sequence[pa.RecordBatch], table: TableSchema) -> Tally:
    """Return the net change of changes of one table under one schema, which sends its old rows in full."""
    truncated, batches = since_truncate(changes)
    parts = [ChangePart(batch, table) for batch in batches]
    names = [str(place) for place in range(len(table.columns))]
    counted = [_counted(part.after, names, 1) for part in parts]
    if not all(part.only_inserts for part in parts):
        for part in parts:
            _refuse_half_told(part, table)
        counted += [_counted(part.before, names, -1) for part in parts]
    counted = [rows for rows in counted if rows.num_rows] or [_nothing(names)]
    rows = pa.concat_tables(counted)
    if not pc.all(pc.greater(rows[COUNT], 0)).as_py():
        rows = rows.group_by(names, use_threads=False).aggregate([(COUNT, "sum")])
        rows = rows.filter(pc.not_equal(rows[f"{COUNT}_sum"], 0))
    # A column may itself be called `_count`: the last one is ours.
    return Tally(truncated, rows.rename_columns([*table.column_names, COUNT]))


def _counted(rows: RowColumns, names: Sequence[str], count: int) -> pa.Table:
    first = rows.first[rows.valid]
    columns = [rows.values.take(pa.array(first + place)) for place in range(rows.width)]
    return pa.table([*columns, pa.array(np.full(len(first), count, np.int64))], [*names, COUNT])


def _nothing(names: Sequence[str]) -> pa.Table:
    fields = [pa.field(name, pa.string()) for name in names]
    return pa.schema([*fields, pa.field(COUNT, pa.int64())]).empty_table()


def _refuse_half_told(part: ChangePart, table: TableSchema) -> None:
    """Raise if not all values of a row were sent: without a key it cannot be found or counted."""
    kinds = np.asarray(part.changes["before_kind"])
    if len(part.unsent_rows) or (kinds[part.op != Op.INSERT] != BeforeKind.FULL).any():
        raise OldRowUnsent("a change of a table without a key does not tell the whole row", table=table.name)

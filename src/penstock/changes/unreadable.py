"""Values that are no text: bytes that are not UTF-8, which PostgreSQL can have (before 15, in a `"char"`).

Capture puts NULs in their place, which no text of PostgreSQL's has. Nobody is given them for a value: the
table stops, and says which row it is.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Lsn, TableSchema
from penstock.model.errors import ValueRefused

REMEDY = (
    "Give the row another value at the source, or the column another type (before PostgreSQL 15 a "
    '`"char"` above 127 is such a value), then `penstock reload CONFIG TABLE`'
)


def refuse(rows: pa.RecordBatch, table: TableSchema) -> None:
    """Raise if one of these changes, as the spool has them, holds such a value. Runs on executors."""
    for side in ("after", "before"):
        if side in rows.schema.names:
            _refuse(rows, rows[side], table)


def _refuse(rows: pa.RecordBatch, tuples: pa.ListArray, table: TableSchema) -> None:
    values = tuples.flatten()
    text = values.buffers()[2]
    if text is None or b"\0" not in text.to_pybytes():  # at the speed of memory, for all rows at once
        return
    places = pc.indices_nonzero(pc.fill_null(pc.match_substring(values, "\0"), False))
    if not len(places):
        return
    row = pc.list_parent_indices(tuples)[places[0].as_py()].as_py()
    by_name = dict(zip(table.column_names, tuples[row].as_py(), strict=False))
    key = [column.name for column in table.columns if column.key]
    raise ValueRefused(
        "a value is no text: its bytes are not UTF-8",
        table=table.name,
        column=next(name for name, value in by_name.items() if "\0" in (value or "")),
        key=", ".join(f"{name}={by_name[name]}" for name in key if "\0" not in (by_name[name] or "")) or None,
        lsn=Lsn(rows["commit_lsn"][row].as_py()) if "commit_lsn" in rows.schema.names else None,
        remedy=REMEDY,
    )

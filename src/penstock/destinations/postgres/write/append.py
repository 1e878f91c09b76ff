"""What a table of kind `append` takes of changes: rows that come and change, none that go.

Deletes and truncates are left out. A row that takes another key is a new row, and the old one stays as it
was. Only if PostgreSQL did not send all of it (an unchanged TOAST value) must the old row be looked at: then
what came before is written first, so that the old row is there to be looked at. That is rare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spool.segment import BeforeKind, Op


def additions(changes: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the changes that count, in order, in pieces to be written one by one. For rows with a key."""
    gathered: list[pa.RecordBatch] = []
    for batch in changes:
        rows = without_deletes(batch)
        looks_back = (np.asarray(rows["before_kind"]) == BeforeKind.KEY) & (
            np.asarray(pc.fill_null(pc.list_value_length(rows["unchanged"]), 0)) > 0
        )
        begun = 0
        for target in np.flatnonzero(looks_back).tolist():
            gathered += _as_new(rows.slice(begun, target - begun))
            if gathered:
                yield gathered
            gathered, begun = [rows.slice(target, 1)], target + 1
        gathered += _as_new(rows.slice(begun))
    if gathered:
        yield gathered


def without_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the changes without deletes and truncates."""
    return batch.filter(pc.is_in(batch["op"], pa.array([Op.INSERT, Op.UPDATE], pa.int8())))


def _as_new(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the rows without their old key. A full old row stays: it has what was not sent."""
    if not rows.num_rows:
        return []
    key_only = np.asarray(rows["before_kind"]) == BeforeKind.KEY
    if not key_only.any():
        return [rows]
    kinds = np.where(key_only, int(BeforeKind.NONE), np.asarray(rows["before_kind"]))
    mask = pa.array(key_only)
    before = pc.if_else(mask, pa.scalar(None, rows.schema.field("before").type), rows["before"])
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns |= {"before": before, "before_kind": pa.array(kinds, pa.int8())}
    return [pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)]

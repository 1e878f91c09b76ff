"""A segment's `before` and `after`, which hold a row's values as a list, taken apart column by column.

All lists of one part have as many values as the table has columns, so a column is every n-th value. Runs on
executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import SpoolDamaged
from penstock.spool.segment import BeforeKind, Op

OPERATIONS = {
    Op.INSERT: "insert",
    Op.UPDATE: "update",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
    Op.MESSAGE: "message",
}
BEFORE_KINDS = {BeforeKind.NONE: "none", BeforeKind.KEY: "key", BeforeKind.FULL: "full"}

MAP = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())


class RowColumns:
    """Rows as lists of text, `width` values each; a row that is null has none."""

    def __init__(self, lists: pa.ListArray, width: int) -> None:
        self.width = width
        self.valid: npt.NDArray[np.bool_] = np.asarray(lists.is_valid())
        self.values: pa.StringArray = lists.flatten()
        if len(self.values) != int(self.valid.sum()) * width:
            raise SpoolDamaged(f"rows do not have the {width} values of their table's columns")
        self.first = (np.cumsum(self.valid) - 1) * width
        self._null = None if self.valid.all() else ~self.valid

    def column(self, place: int) -> pa.StringArray:
        return self.values.take(pa.array(self.first + place, mask=self._null))

    def maps(self, names: Sequence[str], keep: npt.NDArray[np.bool_] | None) -> pa.MapArray:
        """Return each row as a map from column name to value; `keep`: which are in it, per row and column."""
        rows = int(self.valid.sum())
        keys, values = np.tile(np.arange(self.width), rows), self.values
        lengths = np.where(self.valid, self.width, 0)
        if keep is not None:
            kept = keep[self.valid].ravel()
            keys, values = keys[kept], values.filter(pa.array(kept))
            lengths = np.where(self.valid, keep.sum(axis=1), 0)
        keys = pa.array(names, pa.string()).take(pa.array(keys))
        return pa.MapArray.from_arrays(offsets_of(lengths), keys, values, MAP, mask=pa.array(~self.valid))


def completed(rows: pa.RecordBatch, width: int) -> pa.ListArray:
    """Return `after`; a value that PostgreSQL did not send is taken from the old row if all of that came."""
    after, before, unchanged = rows["after"], rows["before"], rows["unchanged"]
    parents = np.asarray(pc.list_parent_indices(unchanged))
    full = np.asarray(rows["before_kind"])[parents] == BeforeKind.FULL
    if not full.any():
        return after
    new, old = RowColumns(after, width), RowColumns(before, width)
    parents, places = parents[full], np.asarray(unchanged.flatten())[full]
    taken = np.arange(len(new.values))
    taken[new.first[parents] + places] = len(new.values) + old.first[parents] + places
    values = pa.concat_arrays([new.values, old.values]).take(pa.array(taken))
    lengths = np.where(new.valid, width, 0)
    return pa.ListArray.from_arrays(offsets_of(lengths), values, mask=after.is_null())


def offsets_of(lengths: npt.NDArray[np.integer]) -> pa.Int32Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())


def named(codes: pa.Int8Array, names: dict[Op, str] | dict[BeforeKind, str]) -> pa.StringArray:
    """Return codes as words: `I` as insert, and so on."""
    places = pc.index_in(codes, pa.array([int(code) for code in names], pa.int8()))
    if places.null_count:
        raise SpoolDamaged("a change of an unknown kind")
    return pa.array(list(names.values())).take(places)


def unchanged_names(unchanged: pa.ListArray, names: Sequence[str]) -> pa.ListArray:
    """Return places of columns as their names; an empty list where there are none."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(unchanged), 0))
    return pa.ListArray.from_arrays(
        offsets_of(lengths), pa.array(names, pa.string()).take(unchanged.flatten()), NAMES
    )


def places_kept(unchanged: pa.ListArray, width: int) -> npt.NDArray[np.bool_] | None:
    """Return, for each row and column, whether PostgreSQL sent its value; None if it sent them all."""
    places = np.asarray(unchanged.flatten())
    if len(places) == 0:
        return None
    keep = np.ones((len(unchanged), width), np.bool_)
    keep[np.asarray(pc.list_parent_indices(unchanged)), places] = False
    return keep

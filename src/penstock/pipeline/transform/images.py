"""The rows of changes, taken out for Spark SQL to look at, and put back: what transforms do on executors.

A change has one or two *images* of its row: the new one, and the old one where all of that was sent. Spark
SQL sees each image as a row of the table: it says whether the image passes the filter, and computes columns.
What comes back becomes changes again, in the spool's own schema, as a segment that any destination reads:

    new image     old image      becomes
    passes        -              what it was (an update of a row that was not there adds it)
    fails         -              a delete by its key (an insert: nothing)
    passes        passes         an update from the old image to the new one
    passes        fails          an insert
    fails         passes         a delete of the old image
    fails         fails          nothing

A delete has no new image and a truncate none at all: a row stands in for it, of which nothing is asked.
Images travel in the order of the changes, the old one of a change directly behind the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.arrow_types import arrow_type
from penstock.changes.columns import RowColumns, completed, offsets_of
from penstock.destinations.batch import rows_of
from penstock.destinations.protocol import Run, TableChanges
from penstock.model import Lsn, TableSchema
from penstock.model.errors import TransformRefused
from penstock.spark.cdc.shapes import typed_column
from penstock.spool import segment
from penstock.spool.segment import SCHEMA, BeforeKind, Op

OLD, PASSES, COMPUTED = "_penstock_old", "_penstock_passes", "_penstock_computed"
CHANGE = tuple(f"_penstock_{name}" for name in SCHEMA.names)
"""The columns of the change itself, beside its image's."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Imaging:
    """What an image consists of, and how it becomes a delivered row."""

    source: TableSchema
    delivered: TableSchema
    needed: tuple[int, ...]
    """Places of the source's columns that the expressions read."""
    taken: tuple[int | None, ...]
    """For each delivered column its place in the source's row; None: it is computed."""

    # From changes to images

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of images: the change, whether the image is the old one, the columns needed."""
        columns = [self.source.columns[place] for place in self.needed]
        fields = [pa.field(column.name, arrow_type(column.type)) for column in columns]
        change = [pa.field(name, _spark_has(field.type)) for name, field in zip(CHANGE, SCHEMA, strict=True)]
        return pa.schema([*change, pa.field(OLD, pa.bool_()), *fields])

    def images(self, changes: TableChanges, run: Run) -> Iterator[pa.RecordBatch]:
        for rows in rows_of(changes, run):
            yield self.images_of(rows)

    def images_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the images of changes: each has its own row only, the new one the old key if there is no old
        image."""
        truncate, full = (
            rows["op"].to_numpy() == Op.TRUNCATE,
            rows["before_kind"].to_numpy() == BeforeKind.FULL,
        )
        sent = _with(rows, after=_unless(truncate, rows["after"]))
        after = completed(sent, len(self.source.columns))
        unsent = _unless(full, rows["unchanged"])  # the old row has them
        self._refuse_unsent(rows, unsent)
        new_after = pc.if_else(pa.array(truncate), rows["after"], after) if truncate.any() else after
        new = self._images(
            _with(rows, before=_unless(full, rows["before"]), after=new_after, unchanged=unsent), after
        )
        if not full.any():
            return new
        with_old = rows.filter(pa.array(full))
        bare = _with(with_old, after=_nulls(with_old, "after"), unchanged=_nulls(with_old, "unchanged"))
        old = self._images(bare, with_old["before"], old=True)
        of_change = np.concatenate([np.arange(len(rows)), np.flatnonzero(full)])
        return pa.concat_batches([new, old]).take(pa.array(np.argsort(of_change, kind="stable")))

    def _images(self, rows: pa.RecordBatch, lists: pa.ListArray, *, old: bool = False) -> pa.RecordBatch:
        values = RowColumns(lists, len(self.source.columns))
        columns = [
            typed_column(values.column(place), self.source.columns[place], rows, self.source)
            for place in self.needed
        ]
        change = [rows[field.name].cast(_spark_has(field.type)) for field in SCHEMA]
        flags = pa.repeat(pa.scalar(old), len(rows))
        return pa.RecordBatch.from_arrays([*change, flags, *columns], schema=self.schema)

    def _refuse_unsent(self, rows: pa.RecordBatch, unsent: pa.ListArray) -> None:
        places = np.asarray(unsent.flatten())
        missed = np.flatnonzero(np.isin(places, self.needed))
        if len(missed):
            row = pc.list_parent_indices(unsent)[missed[0]].as_py()
            raise TransformRefused(
                "its value was not sent, and `where` or `set` needs it",
                table=self.source.name,
                column=self.source.columns[places[missed[0]]].name,
                lsn=Lsn(rows["lsn"][row].as_py()),
                remedy="Run `alter table … replica identity full` at the source, then `penstock retry`",
            )

    # From images to changes

    def changes(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Return images, with what Spark SQL said of them, as changes of the delivered table."""
        judged = _Judged.of(images)
        rows = pa.RecordBatch.from_arrays(
            [
                images[name].take(pa.array(judged.at)).cast(f.type)
                for name, f in zip(CHANGE, SCHEMA, strict=True)
            ],
            schema=SCHEMA,
        )
        columns = {
            "schema_version": pa.repeat(pa.scalar(self.delivered.version, pa.int32()), len(rows)),
            "op": pa.array(judged.becomes, pa.int8()),
            "before_kind": pa.array(judged.before_kind(rows), pa.int8()),
            "before": self._before(rows, judged, images),
            "after": self._after(rows, judged, images),
            "unchanged": self._unsent(_unless(~judged.new, rows["unchanged"])),
        }
        return _with(rows, **columns)

    def _before(self, rows: pa.RecordBatch, judged: _Judged, images: pa.RecordBatch) -> pa.ListArray:
        whole = np.flatnonzero(judged.was)
        by_key = ~judged.has_old & np.asarray(rows["before"].is_valid())
        by_new = ~judged.has_old & ~by_key & judged.gone
        return _placed(
            len(rows),
            [
                (whole, self._rows(images, "before", judged.at[whole] + 1)),
                (np.flatnonzero(by_key), self._keys(rows["before"].filter(pa.array(by_key)))),
                (np.flatnonzero(by_new), self._keys(rows["after"].filter(pa.array(by_new)))),
            ],
        )

    def _after(self, rows: pa.RecordBatch, judged: _Judged, images: pa.RecordBatch) -> pa.ListArray:
        new, truncate = np.flatnonzero(judged.new), np.flatnonzero(judged.becomes == Op.TRUNCATE)
        return _placed(
            len(rows),
            [(new, self._rows(images, "after", judged.at[new])), (truncate, rows["after"].take(truncate))],
        )

    def _rows(self, images: pa.RecordBatch, side: str, at: Ints) -> pa.ListArray:
        """Return the rows of these images as they are delivered."""
        sent = RowColumns(images[f"_penstock_{side}"].take(pa.array(at)), len(self.source.columns))
        computed = RowColumns(images[COMPUTED].take(pa.array(at)), self.taken.count(None))
        first, first_computed = sent.first, len(sent.values) + computed.first
        numbers = iter(range(computed.width))
        columns = [first_computed + next(numbers) if place is None else first + place for place in self.taken]
        values = pa.concat_arrays([sent.values, computed.values.cast(pa.string())])
        return _lists(values.take(pa.array(_by_row(columns))), len(at), len(columns))

    def _keys(self, lists: pa.ListArray) -> pa.ListArray:
        """Return the rows with their key only. Computed columns are never part of it."""
        rows = RowColumns(lists, len(self.source.columns))
        key = [column.key for column in self.delivered.columns]
        places = [place if k and place is not None else -1 for k, place in zip(key, self.taken, strict=True)]
        columns = [np.where(place < 0, -1, rows.first + place) for place in places]
        index = _by_row(columns)
        return _lists(rows.values.take(pa.array(index, mask=index < 0)), len(lists), len(columns))

    def _unsent(self, unchanged: pa.ListArray) -> pa.ListArray:
        """Return the places of columns that were not sent, where they are delivered."""
        delivered_at = np.full(len(self.source.columns), -1, np.int32)
        for new, place in enumerate(self.taken):
            if place is not None:
                delivered_at[place] = new
        places = delivered_at[np.asarray(unchanged.flatten(), np.int64)]
        rows = np.asarray(pc.list_parent_indices(unchanged), np.int64)[places >= 0]
        lengths = np.bincount(rows, minlength=len(unchanged))
        return pa.ListArray.from_arrays(
            offsets_of(lengths), pa.array(places[places >= 0], pa.int32()), mask=unchanged.is_null()
        )


@dataclass(frozen=True, slots=True)
class _Judged:
    """What becomes of changes, by what was said of their images; only of those that are delivered."""

    at: Ints
    """Where a change's new image stands among the images."""
    becomes: npt.NDArray[np.int8]
    new: Mask
    """There is a new row, and it passes."""
    has_old: Mask
    """There is an old image, and it …"""
    was: Mask
    """… passes."""
    gone: Mask
    """It is an update of which only a delete remains."""

    @classmethod
    def of(cls, images: pa.RecordBatch) -> _Judged:
        is_old, passes = (
            np.append(images[name].to_numpy(zero_copy_only=False), False) for name in (OLD, PASSES)
        )
        at = np.flatnonzero(~is_old[:-1])
        op = images["_penstock_op"].to_numpy()[at].astype(np.int8)
        has_old = is_old[at + 1]
        was = has_old & passes[at + 1]
        new = passes[at] & (op != Op.DELETE) & (op != Op.TRUNCATE)
        gone = ~new & (op == Op.UPDATE) & (was | ~has_old)
        kept = new | gone | (op == Op.TRUNCATE) | ((op == Op.DELETE) & (was | ~has_old))
        becomes = np.where(gone, np.int8(Op.DELETE), np.where(new & has_old & ~was, np.int8(Op.INSERT), op))
        return cls(at[kept], becomes[kept], new[kept], has_old[kept], was[kept], gone[kept])

    def before_kind(self, rows: pa.RecordBatch) -> npt.NDArray[np.int8]:
        entered, by_key = self.has_old & ~self.was, self.gone & ~self.has_old
        kinds = np.where(by_key, np.int8(BeforeKind.KEY), rows["before_kind"].to_numpy())
        return np.where(entered, np.int8(BeforeKind.NONE), kinds)


# Lists and batches


def _unless(mask: Mask, lists: pa.ListArray) -> pa.ListArray:
    return pc.if_else(pa.array(mask), pa.scalar(None, lists.type), lists) if mask.any() else lists


def _nulls(rows: pa.RecordBatch, name: str) -> pa.Array:
    return pa.nulls(len(rows), rows.schema.field(name).type)


def _with(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """Return the rows with these columns in the place of theirs."""
    arrays = [columns.get(name, rows[name]) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _by_row(columns: Sequence[Ints]) -> Ints:
    return np.column_stack(columns).ravel()


def _lists(values: pa.StringArray, rows: int, width: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * width, pa.int32()), values)


def _placed(count: int, pieces: Sequence[tuple[Ints, pa.ListArray]]) -> pa.ListArray:
    """Return the lists of each piece at its rows; null at the others."""
    at = np.full(count, -1, np.int64)
    at[np.concatenate([rows for rows, _ in pieces])] = np.arange(sum(len(rows) for rows, _ in pieces))
    return pa.concat_arrays([lists for _, lists in pieces]).take(pa.array(at, mask=at < 0))


def _spark_has(type: pa.DataType) -> pa.DataType:
    return pa.int16() if type == pa.int8() else type


# What tasks do


def write_segment(
    imaging: Imaging, folder: Path, images: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a task's changes as one segment; yield its file, row groups and rows."""
    changes = [imaging.changes(batch) for batch in whole_changes(images)]
    if sum(batch.num_rows for batch in changes):
        path = folder / f"{uuid.uuid4().hex}.arrow"
        written = segment.write(path, changes)
        (part,) = written.parts
        yield pa.RecordBatch.from_arrays(
            [[path.name], [part.first_batch], [part.batches], [part.rows]],
            ["file", "first_batch", "batches", "rows"],
        )


def whole_changes(images: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, cut so that the two images of a change are never parted.

    Only a new image at the very end of a batch may have its old one in the next: that row alone waits.
    """
    waiting: pa.RecordBatch | None = None
    for batch in images:
        if not batch.num_rows:
            continue
        if waiting is not None:
            parted = batch[OLD][0].as_py()
            yield pa.concat_batches([waiting, batch.slice(0, 1)]) if parted else waiting
            batch = batch.slice(1) if parted else batch
            waiting = None
        if batch.num_rows and not batch[OLD][-1].as_py():
            waiting = batch.slice(batch.num_rows - 1)
            batch = batch.slice(0, batch.num_rows - 1)
        if batch.num_rows:
            yield batch
    if waiting is not None:
        yield waiting

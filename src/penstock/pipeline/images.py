"""The rows of changes, taken out for Spark SQL to look at, and put back: what transforms do on executors.

A change has one or two *images* of its row: the new one, and the old one where all of that was sent. Spark
SQL sees each image as a row of the table: it says whether the image passes the filter, and computes columns.
What comes back becomes changes again, in the spool's own schema, as a segment that any destination reads:

    new image     old image      becomes
    passes        -              what it was (an update of a row that was not there adds it)
    fails         -              a delete by its key (an insert: nothing)
    passes        fails          an insert
    fails         passes         a delete of the old image
    fails         fails          nothing
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.batch import rows_of
from penstock.destinations.protocol import Run, TableChanges
from penstock.model import TableSchema
from penstock.model.errors import TransformRefused
from penstock.spark.columns import Rows, completed
from penstock.spark.shapes import typed_column
from penstock.spark.types import arrow_type
from penstock.spool import segment
from penstock.spool.segment import SCHEMA, BeforeKind, Op

OLD, PASSES, COMPUTED = "_penstock_old", "_penstock_passes", "_penstock_computed"
_NOT_SENT = "its value was not sent, and `where` or `set` needs it"


@dataclass(frozen=True, slots=True)
class Imaging:
    """What an image consists of, and how it becomes a delivered row."""

    source: TableSchema
    delivered: TableSchema
    needed: tuple[int, ...]
    """Places of the source's columns that the expressions read."""
    taken: tuple[int | None, ...]
    """For each delivered column its place in the source's row; None: it is computed."""

    @property
    def schema(self) -> pa.Schema:
        """The change as it is, whether the image is the old one, and the columns that are needed."""
        columns = [self.source.columns[place] for place in self.needed]
        fields = [pa.field(column.name, arrow_type(column.type)) for column in columns]
        change = [pa.field(f"_penstock_{field.name}", _spark_has(field.type)) for field in SCHEMA]
        return pa.schema([*change, pa.field(OLD, pa.bool_()), *fields])

    def images(self, changes: TableChanges, run: Run) -> Iterator[pa.RecordBatch]:
        for rows in rows_of(changes, run):
            after = self._images(rows, completed(rows, len(self.source.columns)), old=False)
            full = pa.array(rows["before_kind"].to_numpy() == BeforeKind.FULL)
            before = self._images(rows.filter(full), rows["before"].filter(full), old=True)
            both = (
                pa.Table.from_batches([after, before]) if before.num_rows else pa.Table.from_batches([after])
            )
            order = [(f"_penstock_{name}", "ascending") for name in ("commit_lsn", "seq")]
            yield from both.sort_by([*order, (OLD, "ascending")]).combine_chunks().to_batches()

    def _images(self, rows: pa.RecordBatch, lists: pa.ListArray, *, old: bool) -> pa.RecordBatch:
        """A delete has no new image and a truncate none at all: their columns are null."""
        truncate = pa.array(rows["op"].to_numpy() == Op.TRUNCATE)
        if truncate.true_count:
            lists = pc.if_else(truncate, pa.scalar(None, lists.type), lists)
        values = Rows(lists, len(self.source.columns))
        columns = []
        for place in self.needed:
            column = self.source.columns[place]
            if not old:
                self._refuse_unsent(rows, place)
            columns.append(typed_column(values.column(place), column, rows, self.source))
        flags = pa.repeat(pa.scalar(old), len(rows))
        filled = rows.set_column(rows.schema.get_field_index("after"), "after", lists) if not old else rows
        change = [
            column.cast(_spark_has(field.type)) for column, field in zip(filled.columns, SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*change, flags, *columns], schema=self.schema)

    def _refuse_unsent(self, rows: pa.RecordBatch, place: int) -> None:
        full = rows["before_kind"].to_numpy() == BeforeKind.FULL
        for row, places in enumerate(rows["unchanged"].to_pylist()):
            if places and place in places and not full[row]:
                raise TransformRefused(
                    _NOT_SENT,
                    table=self.source.name,
                    column=self.source.columns[place].name,
                    remedy="Run `alter table … replica identity full` at the source, then `penstock retry`",
                )

    # Back again

    def changes(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Images with what Spark SQL said of them, as changes of the delivered table."""
        found: list[dict[str, Any]] = []
        for rows in _by_change(images.to_pylist()):
            change = self._change(rows)
            if change is not None:
                found.append(change)
        return pa.RecordBatch.from_pylist(found, schema=SCHEMA)

    def _change(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        new, old = rows[0], rows[1] if len(rows) > 1 else None
        change = {name: new[f"_penstock_{name}"] for name in SCHEMA.names}
        change["schema_version"] = self.delivered.version
        if change["op"] == Op.TRUNCATE:
            return change
        key_only = change["before"] if old is None else None
        before = None if old is None or not old[PASSES] else self._row(old["_penstock_before"], old)
        if change["op"] == Op.DELETE:
            if old is not None and before is None:
                return None
            return change | {"before": before or self._plain(key_only)}
        after = self._row(change["after"], new) if new[PASSES] else None
        if after is None:
            return self._left(change, before, old is not None)
        change |= {"after": after, "unchanged": self._unsent(change["unchanged"])}
        if old is None:
            return change | {"before": self._plain(key_only)}
        if before is None:
            return change | {"op": int(Op.INSERT), "before": None, "before_kind": int(BeforeKind.NONE)}
        return change | {"before": before}

    def _left(
        self, change: dict[str, Any], before: list[str | None] | None, knew: bool
    ) -> dict[str, Any] | None:
        """The new row is not for the destination: the old one, if it was, goes."""
        if change["op"] == Op.INSERT or (knew and before is None):
            return None
        gone = change | {"op": int(Op.DELETE), "after": None, "unchanged": None}
        if before is not None:
            return gone | {"before": before}
        key = self._plain(change["before"] if change["before"] is not None else change["after"])
        return gone | {"before": key, "before_kind": int(BeforeKind.KEY)}

    def _row(self, values: Sequence[str | None], image: Mapping[str, Any]) -> list[str | None]:
        computed = iter(image[COMPUTED] or ())
        return [next(computed) if place is None else values[place] for place in self.taken]

    def _plain(self, values: Sequence[str | None] | None) -> list[str | None] | None:
        """An old key: computed columns are never part of it."""
        return None if values is None else [None if p is None else values[p] for p in self.taken]

    def _unsent(self, places: Sequence[int] | None) -> list[int] | None:
        if not places:
            return places if places is None else list(places)
        return [new for new, place in enumerate(self.taken) if place is not None and place in places]


def _spark_has(type: pa.DataType) -> pa.DataType:
    return pa.int16() if type == pa.int8() else type


def _by_change(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The new image of a change, and the old one if it follows."""
    start = 0
    while start < len(rows):
        end = start + 2 if start + 1 < len(rows) and rows[start + 1][OLD] else start + 1
        yield rows[start:end]
        start = end


def write_segment(
    imaging: Imaging, folder: Path, images: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a task's changes as one segment, and tell of it: file, row groups, rows."""
    changes = [imaging.changes(batch) for batch in whole_changes(images)]
    if sum(batch.num_rows for batch in changes):
        path = folder / f"{uuid.uuid4().hex}.parquet"
        written = segment.write(path, changes)
        (part,) = written.parts
        yield pa.RecordBatch.from_arrays(
            [[path.name], [part.first_row_group], [part.row_groups], [part.rows]],
            ["file", "first_row_group", "row_groups", "rows"],
        )


def whole_changes(images: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, cut so that the two images of a change are never parted."""
    held: pa.RecordBatch | None = None
    for batch in images:
        if held is not None:
            batch = pa.Table.from_batches([held, batch]).combine_chunks().to_batches()[0]
        if not batch.num_rows:
            continue
        keep = batch.num_rows - (2 if batch[OLD][-1].as_py() else 1)
        if keep > 0:
            yield batch.slice(0, keep)
        held = batch.slice(keep)
    if held is not None and held.num_rows:
        yield held

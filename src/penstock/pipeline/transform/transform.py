"""Transforms: `where`, `set` and `drop` of a destination's table, as Spark SQL over the row.

In the copy and in the stream the same expressions see the same columns; only those they read are typed. A
column that is not computed keeps the text that PostgreSQL sent. Columns are computed only of rows that pass
the filter, so that `where` can keep away what `set` fails at.

Transformed changes are written as segments of their own, beside the spool, in a folder for each table. They
are there until the destination has them, or until that table's changes are transformed again. What a crash
leaves is removed at the next start: the spool still has the changes that it was made from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.changes.slices import Slice
from penstock.config.destinations import DestinationTable
from penstock.destinations.protocol import Delivery, Run, TableChanges, TableCopy
from penstock.destinations.schema_change import SchemaChange
from penstock.model import TableSchema, private
from penstock.model.errors import PenstockError, to_dict
from penstock.pipeline.transform.analysis import CARRIED, Analysis, Transform, refusing
from penstock.pipeline.transform.images import CHANGE, COMPUTED, OLD, PASSES, Imaging, write_segment
from penstock.spark.snapshot.frames import ROW, text_frame
from penstock.spark.types import spark_schema
from penstock.spool.segment import Op

_WRITTEN = "file string, first_batch bigint, batches bigint, rows bigint"


class Transforms:
    """The transforms of one source's tables on their way to one destination; the folder is theirs alone."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._analysis = Analysis(spark)
        self._folder = folder
        self.clean_up()

    def of(self, rules: DestinationTable, source: TableSchema) -> Transform | None:
        """Return the transform of a table; None where the table arrives as it is."""
        if not any(rules.masks):
            return None
        # Raises if the rules do not fit, even if they do nothing.
        transform = self._analysis.of(rules, source)
        return transform if any(rules.on(source.column_names).masks) else None

    # In the stream

    def changes(self, rules: DestinationTable, changes: TableChanges) -> TableChanges:
        """Return the changes as the destination is to see them. What was made of the table's earlier ones
        goes: they have been written, or are being made again here."""
        self._remove(changes)
        try:
            return self._changes(rules, changes)
        except BaseException:
            self._remove(changes)
            raise

    def _changes(self, rules: DestinationTable, changes: TableChanges) -> TableChanges:
        if not any(rules.masks):
            return changes
        if not any(self.of(rules, run.delivery.table) for run in changes.runs):
            runs = tuple(replace(run, follow=_followed(run.follow, rules)) for run in changes.runs)
            return replace(changes, runs=runs)
        transforms = [self._analysis.of(rules, run.delivery.table) for run in changes.runs]
        pairs = zip(transforms, changes.runs, strict=True)
        runs = tuple(self._run(transform, changes, run) for transform, run in pairs)
        return replace(changes, runs=runs, copied=None)

    def _run(self, transform: Transform, changes: TableChanges, run: Run) -> Run:
        delivery = delivered(run.delivery, transform)
        follow = _followed(run.follow, transform.rules)
        if not run.slices:
            return replace(run, delivery=delivery, follow=follow)
        return Run(delivery, refusing(transform.source, lambda: self._write(transform, changes, run)), follow)

    def _write(self, transform: Transform, changes: TableChanges, run: Run) -> tuple[Slice, ...]:
        folder = self._of_table(changes)
        private.folder(folder)
        units = tuple(replace(run, slices=(part,)) for part in run.slices)
        numbers = self._analysis.session(transform.source).range(0, len(units), 1, len(units))
        read = partial(_read_images, transform.imaging, changes, units)
        images = numbers.mapInArrow(read, spark_schema(transform.imaging.schema))
        write = partial(write_segment, transform.imaging, folder)
        # In the order of the changes:
        written = judged(images, transform).mapInArrow(write, _WRITTEN).collect()
        return tuple(
            Slice(
                path=folder / row.file,
                first_batch=row.first_batch,
                batches=row.batches,
                rows=row.rows,
                table=transform.delivered,
                after=None,
            )
            for row in written
        )

    def _of_table(self, changes: TableChanges) -> Path:
        return self._folder / str(changes.delivery.id)

    def _remove(self, changes: TableChanges) -> None:
        shutil.rmtree(self._of_table(changes), ignore_errors=True)

    def clean_up(self) -> None:
        """Remove all segments: of a batch that was written, or given up, or of a process that was killed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # In the copy

    def copy(self, rules: DestinationTable, copy: TableCopy) -> TableCopy:
        transform = self.of(rules, copy.delivery.table)
        if transform is None:
            return copy
        return replace(
            copy,
            delivery=delivered(copy.delivery, transform),
            rows=refusing(transform.source, lambda: self._copied(transform, copy)),
        )

    def _copied(self, transform: Transform, copy: TableCopy) -> DataFrame:
        source, imaging = transform.source, transform.imaging
        needed = [source.columns[place].name for place in imaging.needed]
        spark = self._analysis.session(source)
        rows = text_frame(spark, copy.conninfo, copy.snapshot, copy.ranges, source, needed)
        if transform.rules.where is not None:
            rows = rows.where(transform.rules.where)
        computed = iter(transform.texts())
        columns = zip(transform.delivered.columns, imaging.taken, strict=True)
        return rows.select(
            *((next(computed) if place is None else f.col(ROW)[place]).alias(c.name) for c, place in columns)
        )


def judged(images: DataFrame, transform: Transform) -> DataFrame:
    """Return the changes with what the expressions say of their images. Of what only stands in for an image
    nothing is asked, and of one that fails nothing is computed."""
    real = f.col(OLD) | ~f.col("_penstock_op").isin(int(Op.DELETE), int(Op.TRUNCATE))
    passes = f.coalesce(f.expr(transform.rules.where or "true"), f.lit(False))
    computed = f.array(*transform.texts()).cast("array<string>")
    return images.withColumn(PASSES, f.when(real, passes).otherwise(False)).select(
        *CHANGE, OLD, PASSES, f.when(f.col(PASSES), computed).alias(COMPUTED)
    )


def delivered(delivery: Delivery, transform: Transform) -> Delivery:
    names = set(transform.delivered.column_names)
    key = delivery.primary_key if names.issuperset(delivery.primary_key) else ()
    columns = zip(transform.delivered.columns, transform.imaging.taken, strict=True)
    computed = frozenset(column.name for column, place in columns if place is None)
    return replace(delivery.at(transform.delivered, key), computed=computed)


def _read_images(
    imaging: Imaging, changes: TableChanges, units: Sequence[Run], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors. Spark makes text of what is raised here: an error of ours goes as JSON."""
    try:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from imaging.images(changes, units[number])
    except PenstockError as error:
        raise RuntimeError(f"{CARRIED}{json.dumps(to_dict(error))}") from error


def _followed(change: SchemaChange | None, rules: DestinationTable) -> SchemaChange | None:
    """Return of a change of the source's schema what concerns the delivered one."""
    if change is None:
        return None
    left_out = rules.hidden
    stays = frozenset(rules.drop) if rules.for_many else left_out  # `set` makes it anew, by its name
    return SchemaChange(
        added=tuple((column, value) for column, value in change.added if column.name not in left_out),
        dropped=tuple(name for name in change.dropped if name not in stays),
        renamed=tuple(pair for pair in change.renamed if not left_out & set(pair)),
        retyped=tuple(column for column in change.retyped if column.name not in left_out),
        target=change.target,
    )

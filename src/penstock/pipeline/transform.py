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
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column as Value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.config.models import DestinationTable
from penstock.destinations.protocol import Delivery, Run, SchemaChange, TableChanges, TableCopy
from penstock.model import Column, ReplicaIdentity, TableSchema, private
from penstock.model.errors import PenstockError, TransformRefused, from_dict, to_dict
from penstock.pipeline.expression import TEXT, Expression, examine, examine_condition
from penstock.pipeline.images import CHANGE, COMPUTED, OLD, PASSES, Imaging, write_segment
from penstock.spark.plan import Slice
from penstock.spark.snapshot import ROW, text_frame
from penstock.spark.tasks import explained, is_of_a_value
from penstock.spark.types import arrow_type, spark_schema
from penstock.spool.segment import Op

Made = TypeVar("Made")

_CARRIED = "penstock error: "
_WRITTEN = "file string, first_batch bigint, batches bigint, rows bigint"
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True)
class Transform:
    """The rules for one table, under one schema of it."""

    rules: DestinationTable
    source: TableSchema
    imaging: Imaging
    computed: tuple[Expression, ...]
    """For each computed column, in the order of the delivered ones."""

    @property
    def delivered(self) -> TableSchema:
        return self.imaging.delivered

    def texts(self) -> list[Value]:
        """The computed columns as PostgreSQL reads them."""
        columns = zip(self.delivered.columns, self.imaging.taken, strict=True)
        types = [column.type for column, place in columns if place is None]
        return [made.text(type) for made, type in zip(self.computed, types, strict=True)]


class Transforms:
    """The transforms of one source's tables on their way to one destination; the folder is theirs alone."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._by_case: SparkSession | None = None
        self._folder = folder
        self._known: dict[tuple[TableSchema, str], Transform] = {}
        self.clean_up()
        for name in _LOGGERS:  # pyspark logs what it raises, with all of the JVM's stack
            PySparkLogger.getLogger(name).disabled = True

    def of(self, rules: DestinationTable, source: TableSchema) -> Transform | None:
        """None where the table arrives as it is."""
        if rules.where is None and not rules.set and not rules.drop:
            return None
        key = source, rules.model_dump_json()
        if key not in self._known:
            self._known[key] = _refusing(source, lambda: self._transform(rules, source))
        return self._known[key]

    def _transform(self, rules: DestinationTable, source: TableSchema) -> Transform:
        _check(rules, source)
        fields = [pa.field(column.name, arrow_type(column.type)) for column in source.columns]
        empty = self._session(source).createDataFrame([], spark_schema(pa.schema(fields)))
        condition = _refusing(source, lambda: examine_condition(empty, rules.where or "true"), rule="where")
        found = {
            name: _refusing(source, partial(examine, empty, said), rule=f"set.{name}")
            for name, said in rules.set.items()
        }
        kept = [(c, place) for place, c in enumerate(source.columns) if c.name not in rules.drop]
        full = source.identity is ReplicaIdentity.FULL
        new = [Column(name, TEXT, full) for name in found if name not in source.column_names]
        given = [*(c for c, _ in kept), *new]
        columns = tuple(found[c.name].column(c) if c.name in found else c for c in given)
        taken = (*(None if c.name in found else place for c, place in kept), *(None for _ in new))
        needed = sorted({place for made in (condition, *found.values()) for place in made.reads})
        imaging = Imaging(source, replace(source, columns=columns), tuple(needed), taken)
        return Transform(rules, source, imaging, tuple(found[c.name] for c in given if c.name in found))

    def _session(self, source: TableSchema) -> SparkSession:
        """Where columns differ by nothing but case, the one in which case tells them apart."""
        if len({name.casefold() for name in source.column_names}) == len(source.columns):
            return self._spark
        if self._by_case is None:
            self._by_case = self._spark.newSession()
            for key, value in self._spark.conf.getAll.items():
                if self._by_case.conf.isModifiable(key):
                    self._by_case.conf.set(key, value)
            self._by_case.conf.set("spark.sql.caseSensitive", "true")
        return self._by_case

    # In the stream

    def changes(self, rules: DestinationTable, changes: TableChanges) -> TableChanges:
        """The same changes as the destination is to see them. What was made of the table's earlier ones
        goes: they have been written, or are being made again here."""
        self._remove(changes)
        try:
            return self._changes(rules, changes)
        except BaseException:
            self._remove(changes)
            raise

    def _changes(self, rules: DestinationTable, changes: TableChanges) -> TableChanges:
        runs = []
        for run in changes.runs:
            transform = self.of(rules, run.delivery.table)
            runs.append(run if transform is None else self._run(transform, changes, run))
        transformed = any(one is not other for one, other in zip(runs, changes.runs, strict=True))
        return replace(changes, runs=tuple(runs), copied=None if transformed else changes.copied)

    def _run(self, transform: Transform, changes: TableChanges, run: Run) -> Run:
        delivery = delivered(run.delivery, transform)
        follow = _followed(run.follow, transform) if run.follow else None
        if not run.slices:
            return replace(run, delivery=delivery, follow=follow)
        return Run(
            delivery, _refusing(transform.source, lambda: self._write(transform, changes, run)), follow
        )

    def _write(self, transform: Transform, changes: TableChanges, run: Run) -> tuple[Slice, ...]:
        folder = self._of_table(changes)
        private.folder(folder)
        units = tuple(replace(run, slices=(part,)) for part in run.slices)
        numbers = self._session(transform.source).range(0, len(units), 1, len(units))
        read = partial(_read_images, transform.imaging, changes, units)
        images = numbers.mapInArrow(read, spark_schema(transform.imaging.schema))
        write = partial(write_segment, transform.imaging, folder)
        found = judged(images, transform).mapInArrow(write, _WRITTEN).collect()  # in the order of the changes
        return tuple(
            Slice(
                path=folder / row.file,
                first_batch=row.first_batch,
                batches=row.batches,
                rows=row.rows,
                table=transform.delivered,
                after=None,
            )
            for row in found
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
            rows=_refusing(transform.source, lambda: self._copied(transform, copy)),
        )

    def _copied(self, transform: Transform, copy: TableCopy) -> DataFrame:
        source, imaging = transform.source, transform.imaging
        needed = [source.columns[place].name for place in imaging.needed]
        spark = self._session(source)
        rows = text_frame(spark, copy.conninfo, copy.snapshot, copy.ranges, source, needed)
        if transform.rules.where is not None:
            rows = rows.where(transform.rules.where)
        computed = iter(transform.texts())
        columns = zip(transform.delivered.columns, imaging.taken, strict=True)
        return rows.select(
            *((next(computed) if place is None else f.col(ROW)[place]).alias(c.name) for c, place in columns)
        )


def judged(images: DataFrame, transform: Transform) -> DataFrame:
    """The changes with what the expressions say of their images. Of what only stands in for an image
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
    return delivery.at(transform.delivered, key)


def _read_images(
    imaging: Imaging, changes: TableChanges, units: Sequence[Run], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors. Spark makes text of what is raised here: an error of ours goes as JSON."""
    try:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from imaging.images(changes, units[number])
    except PenstockError as error:
        raise RuntimeError(f"{_CARRIED}{json.dumps(to_dict(error))}") from error


def _check(rules: DestinationTable, source: TableSchema) -> None:
    names = set(source.column_names)
    if unknown := set(rules.drop) - names:
        raise TransformRefused(f"`drop` names {_listed(unknown)}, which it does not have")
    if names <= {*rules.drop} and not {*rules.set} - names:
        raise TransformRefused("`drop` leaves none of its columns")
    full = source.identity is ReplicaIdentity.FULL
    key = {column.name for column in source.columns if column.key and not full}
    for word, named in (("drop", {*rules.drop}), ("set", {*rules.set})):
        if named & key:
            raise TransformRefused(f"`{word}` names {_listed(named & key)}, part of its key")
    if both := {*rules.drop} & {*rules.set}:
        raise TransformRefused(f"{_listed(both)} stands in `drop` and in `set`")
    folded = {name.casefold(): name for name in names}
    for name in {*rules.set} - names:
        if name.casefold() in folded:  # a mask that is put beside what it is to hide
            raise TransformRefused(f"`set` names {name}: its column is called {folded[name.casefold()]}")


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _followed(change: SchemaChange, transform: Transform) -> SchemaChange:
    """Of a change of the source's table what concerns the delivered one."""
    rules = transform.rules
    left_out = {*rules.drop, *rules.set}
    return SchemaChange(
        added=tuple((column, value) for column, value in change.added if column.name not in left_out),
        dropped=tuple(name for name in change.dropped if name not in left_out),
        renamed=tuple(pair for pair in change.renamed if not left_out & set(pair)),
        retyped=tuple(column for column in change.retyped if column.name not in left_out),
        target=change.target,
    )


def _refusing(source: TableSchema, work: Callable[[], Made], **where: str) -> Made:
    """What Spark says of an expression is an error of the table's. What a task says may be ours; if it is
    not, something happened to the task."""
    try:
        return _explained(work)
    except PenstockError as error:
        error.where.pop("value", None)  # it is of a row, and this is remembered and logged
        raise error.at(table=source.name, **where) from None


def _explained(work: Callable[[], Made]) -> Made:
    with explained():
        try:
            return work()
        except PythonException as error:
            carried = re.search(rf"{_CARRIED}(\{{.*\}})", str(error))
            if carried is None:
                raise
            raise from_dict(json.loads(carried[1])) from None
        except PySparkException as error:
            said = (error.getMessage() or str(error)).splitlines()[0]
            if is_of_a_value(error):
                said = f"{error.getCondition() or 'a value'}, for a value of a row"
            raise TransformRefused(f"Spark SQL refuses it: {said[:500]}") from None

"""Transforms: `where`, `set` and `drop` of a destination's table, as Spark SQL over the row.

In the copy and in the stream the same expressions see the same columns; only those they name are typed. A
column that is not computed keeps the text that PostgreSQL sent. Transformed changes are written as segments
of their own, beside the spool, for the time of one batch: destinations read them like any others.
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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as sql

from penstock.config.models import DestinationTable
from penstock.destinations.protocol import Delivery, Run, SchemaChange, TableChanges, TableCopy
from penstock.model import Column, ColumnType, ReplicaIdentity, TableSchema
from penstock.model.errors import PenstockError, TransformRefused, from_dict, to_dict
from penstock.pipeline.images import COMPUTED, PASSES, Imaging, write_segment
from penstock.spark.plan import Slice
from penstock.spark.snapshot import ROW, text_frame
from penstock.spark.types import arrow_type, spark_schema, spark_type

Made = TypeVar("Made")

_CARRIED = "penstock error: "
_WRITTEN = "file string, first_row_group bigint, row_groups bigint, rows bigint"

_TYPES: dict[type[sql.DataType], ColumnType] = {
    sql.StringType: ColumnType(25, "text"),
    sql.BooleanType: ColumnType(16, "bool"),
    sql.ByteType: ColumnType(21, "int2"),
    sql.ShortType: ColumnType(21, "int2"),
    sql.IntegerType: ColumnType(23, "int4"),
    sql.LongType: ColumnType(20, "int8"),
    sql.FloatType: ColumnType(700, "float4"),
    sql.DoubleType: ColumnType(701, "float8"),
    sql.BinaryType: ColumnType(17, "bytea"),
    sql.DateType: ColumnType(1082, "date"),
    sql.TimestampType: ColumnType(1184, "timestamptz"),
    sql.TimestampNTZType: ColumnType(1114, "timestamp"),
}


@dataclass(frozen=True, slots=True)
class Transform:
    """The rules for one table, under one schema of it."""

    rules: DestinationTable
    source: TableSchema
    imaging: Imaging
    computed: tuple[str, ...]
    """An expression for each computed column, whose result PostgreSQL reads as its text."""

    @property
    def delivered(self) -> TableSchema:
        return self.imaging.delivered


class Transforms:
    """The transforms of one destination's tables."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._known: dict[tuple[TableSchema, str], Transform] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def of(self, rules: DestinationTable, source: TableSchema) -> Transform | None:
        """None where the table arrives as it is."""
        if rules.where is None and not rules.set and not rules.drop:
            return None
        key = source, rules.model_dump_json()
        if key not in self._known:
            self._known[key] = _refusing(source, lambda: self._transform(rules, source))
        return self._known[key]

    def _transform(self, rules: DestinationTable, source: TableSchema) -> Transform:
        self._check(rules, source)
        needed = _named(" ".join([rules.where or "true", *rules.set.values()]), source)
        fields = [pa.field(source.columns[p].name, arrow_type(source.columns[p].type)) for p in needed]
        empty = self._spark.createDataFrame([], spark_schema(pa.schema(fields)))
        if rules.where is not None:
            empty.where(rules.where)
        results = {name: empty.select(f.expr(said)).schema[0].dataType for name, said in rules.set.items()}
        columns, taken = [], list[int | None]()
        for place, column in enumerate(source.columns):
            if column.name not in rules.drop:
                computed = column.name in results
                columns.append(_computed(column, results[column.name]) if computed else column)
                taken.append(None if computed else place)
        for name in results.keys() - set(source.column_names):
            full = source.identity is ReplicaIdentity.FULL
            columns.append(_computed(Column(name, ColumnType(25, "text"), full), results[name]))
            taken.append(None)
        delivered = replace(source, columns=tuple(columns))
        said = [
            _as_text(rules.set[c.name], results[c.name])
            for c, place in zip(columns, taken, strict=True)
            if place is None
        ]
        return Transform(rules, source, Imaging(source, delivered, needed, tuple(taken)), tuple(said))

    def _check(self, rules: DestinationTable, source: TableSchema) -> None:
        unknown = set(rules.drop) - set(source.column_names)
        if unknown:
            raise TransformRefused(f"`drop` names {', '.join(sorted(unknown))}, which it does not have")
        full = source.identity is ReplicaIdentity.FULL
        key = {column.name for column in source.columns if column.key and not full}
        for word, names in (("drop", set(rules.drop)), ("set", set(rules.set))):
            if names & key:
                raise TransformRefused(f"`{word}` names {', '.join(sorted(names & key))}, part of its key")

    # In the stream

    def changes(self, rules: DestinationTable, changes: TableChanges) -> TableChanges:
        """The same changes as the destination is to see them."""
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
        self._folder.mkdir(parents=True, exist_ok=True)
        units = tuple(replace(run, slices=(part,)) for part in run.slices)
        numbers = self._spark.range(0, len(units), 1, len(units))
        read = partial(_read_images, transform.imaging, changes, units)
        images = numbers.mapInArrow(read, spark_schema(transform.imaging.schema))
        passes = f.coalesce(f.expr(transform.rules.where or "true"), f.lit(False))
        computed = [f.expr(said) for said in transform.computed]
        seen = images.select(
            *[name for name in images.columns if name.startswith("_penstock_")],
            passes.alias(PASSES),
            f.array(*(value.cast("string") for value in computed)).cast("array<string>").alias(COMPUTED),
        )
        write = partial(write_segment, transform.imaging, self._folder)
        found = seen.mapInArrow(write, _WRITTEN).collect()  # a row for each task, in the order of the changes
        return tuple(
            Slice(
                self._folder / row.file,
                row.first_row_group,
                row.row_groups,
                row.rows,
                transform.delivered,
                None,
            )
            for row in found
        )

    def clean_up(self) -> None:
        """Remove the segments of a batch that was written."""
        for path in self._folder.glob("*.parquet") if self._folder.exists() else ():
            path.unlink(missing_ok=True)

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
        rows = text_frame(self._spark, copy.conninfo, copy.snapshot, copy.ranges, source, needed)
        if transform.rules.where is not None:
            rows = rows.where(transform.rules.where)
        computed = iter(transform.computed)
        columns = zip(transform.delivered.columns, imaging.taken, strict=True)
        return rows.select(
            *(
                (f.expr(next(computed)) if place is None else f.col(ROW)[place]).cast("string").alias(c.name)
                for c, place in columns
            )
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


def _named(said: str, source: TableSchema) -> tuple[int, ...]:
    """The columns whose names occur in the expressions: some perhaps as a word of another meaning, which
    costs only their typing."""
    words = {word.casefold() for word in re.findall(r"`[^`]+`|\w+", said)}
    words |= {word.strip("`") for word in words}
    return tuple(p for p, column in enumerate(source.columns) if column.name.casefold() in words)


def _computed(column: Column, result: sql.DataType) -> Column:
    """With the type of the source's column where the expression keeps it."""
    if spark_type(arrow_type(column.type)) == result:
        return column
    if isinstance(result, sql.DecimalType):
        modifier = ((result.precision << 16) | result.scale) + 4
        return replace(column, type=ColumnType(1700, "numeric", modifier))
    if type(result) not in _TYPES:
        raise TransformRefused(
            f"`set` gives {column.name} the type {result.simpleString()}, which no column can have",
            remedy="Make it a string: to_json(…) or cast(… as string)",
        )
    return replace(column, type=_TYPES[type(result)])


def _as_text(said: str, result: sql.DataType) -> str:
    """As PostgreSQL reads it: Spark prints bytes as they are."""
    return rf"concat('\\\\x', lower(hex({said})))" if isinstance(result, sql.BinaryType) else f"({said})"


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


def _refusing(source: TableSchema, work: Callable[[], Made]) -> Made:
    """What Spark says of an expression is an error of the table's."""
    try:
        return work()
    except PenstockError as error:
        raise error.at(table=source.name) from None
    except PySparkException as error:
        carried = re.search(rf"{_CARRIED}(\{{.*\}})", str(error))
        if carried:
            raise from_dict(json.loads(carried[1])).at(table=source.name) from None
        said = (
            (error.getMessage() or str(error)).split("\n")[0] if hasattr(error, "getMessage") else str(error)
        )
        raise TransformRefused(f"Spark SQL refuses it: {said[:500]}", table=source.name) from None

"""A copy's rows as a Spark DataFrame: one task for each part, all under one exported snapshot.

The frames are for whoever holds the snapshot open (`postgres.snapshot.Snapshot`) until they have been used.
For a program without one there is `spark.read.format("postgres_snapshot")`, in `source.py`.

The parts and the connection travel inside the function that the tasks run, which no plan shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from penstock.changes.arrow_types import arrow_type
from penstock.changes.columns import NAMES
from penstock.model import TableSchema
from penstock.postgres.snapshot import CopyRange
from penstock.spark.snapshot.fetch import fetch_text, fetch_typed, typed_column
from penstock.spark.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROW = "_row"


class Copied(Protocol):
    """What the tasks of a copy need to know; `destinations.protocol.TableCopy` is one."""

    @property
    def conninfo(self) -> str: ...
    @property
    def snapshot(self) -> str: ...
    @property
    def ranges(self) -> Sequence[CopyRange]: ...


def typed_frame(spark: SparkSession, copy: Copied, table: TableSchema) -> DataFrame:
    """Return the table's columns in their types."""
    conninfo, snapshot, ranges, columns = copy.conninfo, copy.snapshot, tuple(copy.ranges), table.columns

    def read_parts(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _chosen(ranges, numbers):
            yield from fetch_typed(conninfo, snapshot, part, columns)

    schema = pa.schema([(column.name, arrow_type(column.type)) for column in columns])
    return _frame(spark, len(ranges), read_parts, schema)


def typed_rows(rows: DataFrame, table: TableSchema) -> DataFrame:
    """Return rows that have each value as PostgreSQL's text, in the columns' types. Columns go by their
    place: Spark would look for some names (a dot, a backtick) in vain."""
    columns, name = table.columns, table.name
    schema = pa.schema([(column.name, arrow_type(column.type)) for column in columns])

    def type_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs = zip(batch.columns, columns, strict=True)
            arrays = [typed_column(text.cast(pa.string()), column, name) for text, column in pairs]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    by_place = rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))
    return by_place.mapInArrow(type_rows, spark_schema(schema))


def text_frame(
    spark: SparkSession,
    conninfo: str,
    snapshot: str,
    ranges: Sequence[CopyRange],
    table: TableSchema,
    typed: Sequence[str],
) -> DataFrame:
    """Return `_row`, an array of all values as PostgreSQL's text, in the order of the table's columns; then
    each column that is named in `typed`, in its type."""
    ranges = tuple(ranges)
    places = [table.column_names.index(name) for name in typed]
    fields = [
        pa.field(name, arrow_type(table.columns[place].type))
        for name, place in zip(typed, places, strict=True)
    ]
    schema = pa.schema([pa.field(ROW, NAMES), *fields])

    def read_parts(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _chosen(ranges, numbers):
            for rows in fetch_text(conninfo, snapshot, part, table.columns):
                wanted = (typed_column(rows[place], table.columns[place], part.table) for place in places)
                yield pa.RecordBatch.from_arrays([as_lists(rows.columns), *wanted], schema=schema)

    return _frame(spark, len(ranges), read_parts, schema)


def as_lists(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """Return columns as rows: the first value of each, then the second of each, and so on."""
    width, rows = len(columns), len(columns[0])
    by_row = np.arange(width * rows).reshape(width, rows).T.ravel()
    values = pa.concat_arrays(columns).take(pa.array(by_row))
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * width, pa.int32()), values)


def _frame(
    spark: SparkSession,
    parts: int,
    read_parts: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the frame of all parts; of none, where a partitioned table has no partition."""
    declared = spark_schema(schema)
    if not parts:
        return spark.createDataFrame([], declared)
    return spark.range(0, parts, 1, parts).mapInArrow(read_parts, declared)


def _chosen(ranges: Sequence[CopyRange], numbers: Iterator[pa.RecordBatch]) -> Iterator[CopyRange]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield ranges[number]

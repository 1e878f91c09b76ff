"""A batch of changes, and the views of it that destinations take.

batch.events()          plain objects in order, for code that looks at one change after the other
batch.changes()         all changes as one DataFrame, old and new rows as maps
batch.table(name)       the changes of one table as a DataFrame, in its own columns and types
events_of(changes)      the plain objects of one table, for code that runs on executors
rows_of(changes, run)   Arrow, as the spool has it, for code that runs on executors
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.changes import old_rows, unreadable
from penstock.changes.events import PlacedRow, placed_rows, transactions
from penstock.changes.slices import Slice, read_slice, rows_from
from penstock.destinations.protocol import Kind, Run, TableChanges
from penstock.model import Lsn, TableId, TableName, TableSchema
from penstock.model.ddl import DdlEvent, Marker, RefusedMarker
from penstock.model.errors import UnknownTable
from penstock.model.events import Event, Relation
from penstock.spark.cdc.shapes import AllTables, OneTable, Shape
from penstock.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """All changes of one source that committed in `[start, end)`, of the tables that are delivered."""

    source: str
    start: Lsn
    end: Lsn
    tables: tuple[TableChanges, ...]
    complete_through: datetime | None = None
    """The time up to which everything that committed has been delivered, when this batch has."""
    messages: tuple[Slice, ...] = ()
    """Logical messages (`pg_logical_emit_message`)."""
    ddl: tuple[DdlEvent, ...] = ()
    """Schema changes as the source recorded them; without text where a rule of the destination hides
    anything of the table."""
    markers: tuple[Marker, ...] = ()
    refused_markers: tuple[RefusedMarker, ...] = ()
    """What asks for reloads of tables."""
    spark: SparkSession | None = None
    """On the driver only."""

    @property
    def rows(self) -> int:
        """How many changes there are at most, as `TableChanges` has it."""
        return sum(table.rows for table in self.tables)

    def on(self, spark: SparkSession) -> ChangeBatch:
        return replace(self, spark=spark)

    def events(self) -> Iterator[Event]:
        """Yield every change in the order of the source, transaction by transaction, on the driver. A table's
        schema comes before its first change, and before the first after it changed."""
        streams = [_placed_rows(changes) for changes in self.tables]
        versions: dict[TableId, int] = {}
        for event in transactions(
            [*streams, *(placed_rows(read_slice(part), None) for part in self.messages)]
        ):
            if isinstance(event, Relation):
                versions[event.table_schema.id] = event.table_schema.version
            yield event
        for changes in self.tables:
            table = changes.delivery.table
            if changes.runs[-1].follow and versions.get(table.id) != table.version:
                yield Relation(self.end, self.end, table)

    def changes(self) -> DataFrame:
        """Return all changes, in order within a table: the columns of `postgres_cdc` without a table."""
        return self._frame(AllTables(), [(changes, run) for changes in self.tables for run in changes.runs])

    def table(self, name: str | TableName) -> DataFrame:
        """Return the changes of one table in its own columns and types, those of its newest schema."""
        wanted = TableName.parse(name) if isinstance(name, str) else name
        for changes in self.tables:
            if changes.delivery.table.name == wanted:
                shape = OneTable(changes.delivery.table.columns, with_before=True)
                return self._frame(shape, [(changes, run) for run in changes.runs])
        raise UnknownTable("the batch has no changes of this table", table=wanted)

    def _frame(self, shape: Shape, units: Sequence[tuple[TableChanges, Run]]) -> DataFrame:
        assert self.spark is not None
        numbers = self.spark.range(0, len(units), 1, max(len(units), 1))
        read: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = partial(_read, shape, units)
        return numbers.mapInArrow(read, spark_schema(shape.schema))


def events_of(changes: TableChanges) -> Iterator[Event]:
    """Yield the changes of one table, as `ChangeBatch.events` gives those of all. Runs on executors."""
    return transactions([_placed_rows(changes)])


def _placed_rows(changes: TableChanges) -> Iterator[PlacedRow]:
    for run in changes.runs:
        yield from placed_rows(rows_of(changes, run), run.delivery.table)


def rows_of(changes: TableChanges, run: Run) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a run that are meant, in order, as the spool has them; each can be delivered. Runs
    on executors."""
    for table, rows in meant_rows(changes, run):
        refuse(rows, table)
        yield rows


def refuse(rows: pa.RecordBatch, table: TableSchema) -> None:
    """Raise if one of these changes cannot be delivered, wherever to."""
    unreadable.refuse(rows, table)
    old_rows.refuse(rows, table)


def meant_rows(changes: TableChanges, run: Run) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
    """Yield the changes of a run that are meant, whether they can be delivered or not, each with the table as
    the source has it."""
    for part in run.slices:
        table = part.table or run.delivery.table
        for rows in read_slice(part):
            if part.after is None or part.after < changes.start:
                rows = rows_from(rows, changes.start)
            if changes.copied is not None:
                rows = rows.filter(pa.array(~changes.copied.sees(rows["xid"].to_numpy())))
            if run.delivery.kind is Kind.APPEND:
                rows = old_rows.without_untold_deletes(rows, table)
            if rows.num_rows:
                yield table, rows


def _read(
    shape: Shape, units: Sequence[tuple[TableChanges, Run]], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the units whose numbers come in, in the shape that is wanted. Runs on executors."""
    for batch in numbers:
        for number in batch["id"].to_pylist():
            changes, run = units[number]
            for rows in rows_of(changes, run):
                yield shape.batch(rows, run.delivery.table)

"""`spark.read.format("postgres_snapshot")`: a table of a PostgreSQL database, all of it at one moment.

All tasks of a read see the same snapshot, whatever is written meanwhile. Somebody has to hold it open:

- a table that one task can read: that task, for itself;
- a larger one: a process beside the driver, which ends when the readers are done (`holder.py`);
- with the option `snapshot`: whoever exported it.

Where things run: `schema` and `partitions` in processes beside the driver, `read` on the executors. What is
needed there to connect travels with the reader, and is shown by no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.model import Column, ColumnType, TableId
from penstock.model.errors import ConfigError, SchemaChanged, SnapshotLost, UnknownTable
from penstock.spark.snapshot.options import EVERY_COLUMN, SnapshotOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.postgres.connection import Connection
    from penstock.postgres.snapshot import CopyRange, Wanted

_TEXT = ColumnType(25, "text")
_GONE = (
    "Load the table and read it again. To read under one snapshot for longer, hold it open yourself and give "
    "its name as the option `snapshot`"
)

_COLUMNS = """
    select c.oid, a.attname, a.atttypid, a.atttypmod
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
    order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class Described:
    """The table when it was loaded, with the columns that are wanted of it."""

    id: TableId
    columns: tuple[Column, ...]


class PostgresSnapshot(DataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = SnapshotOptions.read(options)
        self._described: Described | None = None

    @classmethod
    def name(cls) -> str:
        return "postgres_snapshot"

    def schema(self) -> StructType:
        import pyarrow as pa

        from penstock.changes.arrow_types import arrow_type
        from penstock.postgres.connection import connect
        from penstock.spark.types import spark_schema

        with closing(connect(self._options.conninfo)) as connection:
            self._described = describe(connection, self._options)
        fields = [(column.name, arrow_type(column.type)) for column in self._described.columns]
        return spark_schema(pa.schema(fields))

    def reader(self, schema: StructType) -> TableReader:  # noqa: ARG002
        if self._described is None:
            raise ConfigError(
                "postgres_snapshot finds the schema itself", remedy="Leave .schema(…) out of the query"
            )
        return TableReader(self._options, self._described)


class TablePartition(InputPartition):
    def __init__(self, snapshot: str | None, ranges: tuple[CopyRange, ...]) -> None:
        """Without a snapshot: the whole table, under one of the task's own."""
        super().__init__(ranges)
        self.snapshot = snapshot
        self.ranges = ranges


class TableReader(DataSourceReader):
    def __init__(self, options: SnapshotOptions, described: Described) -> None:
        self._options = options
        self._described = described

    @property
    def _wanted(self) -> Wanted:
        from penstock.postgres.snapshot import Wanted

        names = tuple(column.name for column in self._described.columns)
        return Wanted(names, self._options.where, self._options.partition_bytes)

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.postgres.connection import connect
        from penstock.postgres.exported_snapshot import join
        from penstock.postgres.snapshot import explained, ranges_of
        from penstock.spark.snapshot.snapshot_process import hold

        options, table = self._options, self._described.id
        with closing(connect(options.conninfo)) as connection, explained(table=options.table):
            if options.snapshot is not None:
                join(connection, options.snapshot)
            if describe(connection, options) != self._described:
                raise SchemaChanged("the table is not what it was when it was loaded", remedy="Load it again")
            ranges = ranges_of(connection, table, self._wanted)
            if ranges and options.where is not None:
                _try_condition(connection, ranges[0])
        if options.snapshot is not None:
            return packed(options.snapshot, ranges, options.partition_bytes)
        if sum(part.bytes for part in ranges) <= options.partition_bytes:
            return [TablePartition(None, ())]
        held = hold(options.conninfo, table, self._wanted, options.withheld)
        return packed(held.snapshot, held.ranges, options.partition_bytes)

    # On the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        from penstock.spark.snapshot.fetch import fetch_typed

        conninfo, columns = self._options.conninfo, self._described.columns
        with self._under(partition) as (snapshot, ranges):
            for part in ranges:
                try:
                    yield from fetch_typed(conninfo, snapshot, part, columns)
                except SnapshotLost as error:
                    raise SnapshotLost(error.reason, remedy=_GONE, **error.where) from None

    @contextmanager
    def _under(self, partition: TablePartition) -> Iterator[tuple[str, Sequence[CopyRange]]]:
        """Yield the snapshot to read under, and what to read."""
        from penstock.postgres.snapshot import Snapshot

        if partition.snapshot is not None:
            yield partition.snapshot, partition.ranges
            return
        wanted = self._wanted
        with Snapshot.open(self._options.conninfo, self._described.id) as snapshot:
            yield snapshot.name, snapshot.ranges(wanted.columns, wanted.row_filter, wanted.partition_bytes)


def _try_condition(connection: Connection, part: CopyRange) -> None:
    """Raise what is wrong with the user's own condition, before the tasks begin."""
    import psycopg
    from psycopg import sql

    from penstock.postgres.connection import explain

    try:
        connection.execute(sql.SQL("explain {}").format(part.query()))
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"PostgreSQL does not take the option `where`: {explain(error).reason}") from None


def packed(snapshot: str, ranges: Sequence[CopyRange], most: int) -> list[TablePartition]:
    """Return the parts as tasks: small ones, of a table with many small partitions, share one."""
    groups: list[list[CopyRange]] = []
    size = 0
    for part in ranges:
        size += part.bytes
        if not groups or size > most:
            groups.append([])
            size = part.bytes
        groups[-1].append(part)
    return [TablePartition(snapshot, tuple(group)) for group in groups]


def describe(connection: Connection, options: SnapshotOptions) -> Described:
    from penstock.postgres.types import TypeCatalog

    table = options.table
    rows = connection.execute(_COLUMNS, (table.schema, table.name)).fetchall()
    if not rows:
        raise UnknownTable(
            "there is no such table",
            table=table,
            remedy="Check the name (schema.table); views are not copied",
        )
    types = TypeCatalog(lambda: connection)
    existing = {name: Column(name, types.resolve(oid, modifier)) for _, name, oid, modifier in rows}
    names = tuple(existing) if options.columns is None else options.columns
    text = frozenset(names) if EVERY_COLUMN in options.text_columns else options.text_columns
    missing = {*names, *text} - existing.keys()
    if missing or not text <= set(names):
        lacking = ", ".join(sorted(missing or text - set(names)))
        raise ConfigError(f"no column {lacking} among those to read", table=table)
    columns = (replace(existing[name], type=_TEXT) if name in text else existing[name] for name in names)
    return Described(TableId(rows[0][0]), tuple(columns))

"""Changes made by hand, and the PostgreSQL destination they are written to."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.changes.slices import slices_of
from penstock.config import DestinationConfig
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.postgres import PostgresTarget
from penstock.destinations.protocol import Delivery, Kind, Run, Stopped, TableChanges, TableCopy, Target
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Lsn, TableId, TableName, TableSchema
from penstock.model.visibility import Visibility
from penstock.postgres.snapshot import Snapshot
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.changes.made import START, STEP, WHEN, MadeSpool
from tests.changes.made import table as made_table

CHILDREN = made_table(3, "public.children", {"id": "int4", "parent": "int4"})
GRANDCHILDREN = made_table(4, "public.grandchildren", {"id": "int4", "parent": "int4"})
TREE = made_table(5, "public.tree", {"id": "int4", "parent": "int4"})


class Spool(MadeSpool):
    """Transactions commit a second apart."""

    def _add(self, *given: Any, **more: Any) -> None:
        super()._add(*given, **{"committed_at": committed_at(Lsn(self._at))} | more)


def committed_at(position: Lsn) -> datetime:
    """When the transaction committed that begins at this position of a made spool."""
    return WHEN + timedelta(seconds=(position.value - START.value) // STEP)


class Given:
    """One source's spool and how its tables are delivered."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path) -> None:
        self.spark = spark
        self.database = database
        self.spool = Spool(folder / "spool")
        self.start = START
        """The position that the destination has come to."""
        self.deliveries: dict[TableId, Delivery] = {}
        self.follows: dict[tuple[TableId, int], SchemaChange] = {}
        self._targets: list[PostgresTarget] = []

    def target(self, sources: tuple[str, ...] = ("eu",), **options: Any) -> PostgresTarget:
        """The destination, opened."""
        options = {"name": "warehouse", "type": "postgres", "dsn": self.database.dsn} | options
        target = PostgresTarget("shop", DestinationConfig.model_validate(options), sources)
        target.open(self.spark)
        for source in sources:
            if target.position(source) is None:
                target.begin(source, START)
        self._targets.append(target)
        return target

    def deliver(
        self,
        *tables: TableSchema,
        kind: Kind = Kind.CLONE,
        source: str = "eu",
        schema: str = "app",
        **more: Any,
    ) -> None:
        """Tables of the source: known to its spool, and how they arrive."""
        for table in tables:
            self.spool.learn(table)
            target = TableName(schema, table.name.name)
            self.deliveries[table.id] = Delivery(source, table, target, kind, **more)

    def evolve(self, table: TableSchema, change: SchemaChange, **more: Any) -> None:
        """The table has another version from now on."""
        self.spool.learn(table)
        self.follows[table.id, table.version] = change
        self.deliveries[table.id] = replace(self.deliveries[table.id], table=table, **more)

    def batch(self, end: Lsn, start: Lsn | None = None, source: str = "eu") -> ChangeBatch:
        """All changes of `[start, end)`."""
        begin = self.start if start is None else start
        found = {id: self.changes(id, begin, end) for id in self.deliveries}
        tables = tuple(changes for changes in found.values() if any(run.slices for run in changes.runs))
        return ChangeBatch(source, begin, end, tables, committed_at(end))

    def changes(self, table: TableId, start: Lsn, end: Lsn, copied: Visibility | None = None) -> TableChanges:
        delivery = self.deliveries[table]
        with closing(Manifest.open(self.spool.path)) as manifest:
            parts = [
                part
                for part in slices_of(
                    self.spool.path, manifest.entries(start, end), start, manifest.schemas()
                )
                if part.table is not None and part.table.id == table
            ]
        runs: list[Run] = []
        for part in parts:
            assert part.table is not None
            if runs and runs[-1].delivery.table.version == part.table.version:
                runs[-1] = replace(runs[-1], slices=(*runs[-1].slices, part))
            else:
                follow = self.follows.get((table, part.table.version))
                runs.append(Run(replace(delivery, table=part.table), (part,), follow))
        return TableChanges(tuple(runs) or (Run(delivery, ()),), start, copied)

    def write(self, target: Target, end: Lsn) -> list[Stopped]:
        """Write what came since the last time."""
        stopped = list(target.write(self.batch(end)))
        self.start = end
        return stopped

    def copy(self, target: Target, source: Database, table: TableId, id: str = "first") -> int:
        """Make a copy, under a snapshot that is kept until its rows are read."""
        delivery = self.deliveries[table]
        name = delivery.table.name
        [(oid,)] = source.query(
            "select c.oid from pg_class c join pg_namespace n on n.oid = relnamespace"
            " where nspname = %s and relname = %s",
            name.schema,
            name.name,
        )
        with Snapshot.open(source.dsn, TableId(oid)) as snapshot:
            ranges = snapshot.ranges(delivery.table.column_names, None, 100_000)
            copy = TableCopy(id, delivery, source.dsn, snapshot.name, tuple(ranges), rows_read=snapshot.close)
            return target.copy_table(copy)

    def close(self) -> None:
        self.spool.close()
        for target in self._targets:
            target.close()

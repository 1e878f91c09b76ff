"""PostgreSQL as a destination: the driver's part.

The driver plans; rows are read and written by Spark's tasks (`write/tasks.py`, `copy/table_copy.py`), or by
the driver itself where a task would be but a detour: for few rows, and for a single task on the driver's own
machine. How far things came is remembered in the destination's database, in the transactions that write the
data (`destinations/sql_ledger.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.config import DestinationConfig
from penstock.config.tables import is_for_many
from penstock.destinations import ledger, sql_ledger
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.postgres.copy import table_copy
from penstock.destinations.postgres.endpoint import Endpoint
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.patience import Patience
from penstock.destinations.postgres.session import about, close_idle
from penstock.destinations.postgres.write import tasks
from penstock.destinations.protocol import Delivery, Recorded, Stopped, TableChanges, TableCopy, Traits
from penstock.destinations.sql_ledger import SqlLedger
from penstock.destinations.work import SMALL_BYTES, Workers, are_few, partition_results
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PostgresTarget:
    """A `Target`."""

    traits = Traits(keeps_position=True, keeps_tables=True)
    reloads = None
    snapshots = None

    def __init__(
        self, pipeline: str, config: DestinationConfig, sources: Sequence[str], beside: Sequence[str] = ()
    ) -> None:
        """`beside`: what the pipeline's other destinations are called."""
        self.name = config.name
        options: PostgresOptions = config.settings(PostgresOptions)
        self._endpoint = Endpoint(
            pipeline,
            config.name,
            options.conninfo(),
            options.source_column if len(sources) > 1 else None,
            options.create_tables,
            options.trusted_owners,
            tuple(name for name in config.tables if not is_for_many(name)),
            tuple(beside),
        )
        self._patience = Patience(self._endpoint)
        self._by_table = options.consistency == "table"
        self._sources = tuple(sources)
        self._workers: Workers

    def open(self, spark: SparkSession) -> None:
        self._workers = Workers(spark)
        with self._endpoint.session() as connection:
            sql_ledger.create(connection)

    def position(self, source: str) -> Lsn | None:
        with self._endpoint.session() as connection:
            return SqlLedger(connection, self._endpoint.stream(source)).position()

    def begin(self, source: str, position: Lsn) -> None:
        with self._endpoint.session() as connection:
            ledger.begin(SqlLedger(connection, self._endpoint.stream(source)), position)

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:
        with self._endpoint.session() as connection:
            return ledger.recorded(SqlLedger(connection, self._endpoint.stream(source)))

    def copy_table(self, copy: TableCopy) -> int:
        endpoint, table = self._endpoint, copy.delivery.table.name
        with endpoint.session() as connection, about(table):
            target = table_copy.begin(connection, endpoint, copy)
            format = table_copy.format_for(connection, target)
        if copy.rows is not None:
            partition_results(copy.rows, partial(table_copy.copy_partition, endpoint, copy.id, target))
        else:
            parts = [
                table_copy.CopyPart(
                    endpoint, copy.id, target, number, copy.conninfo, copy.snapshot, part, format
                )
                for number, part in enumerate(copy.ranges)
            ]
            small = sum(part.bytes for part in copy.ranges) <= SMALL_BYTES
            self._workers.results(table_copy.copy_part, parts, here=small)
        copy.rows_read()
        with endpoint.session() as connection, about(table):
            return table_copy.finish(connection, target, copy.id)

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:
        self._bring_up(copy, changes, position)

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        self._bring_up(None, changes, position)

    def _bring_up(self, copy: str | None, changes: TableChanges, position: Lsn) -> None:
        work = [tasks.Handover(self._patience.endpoint(), copy, changes, position)]
        try:
            self._workers.results(tasks.hand_over, work, here=are_few([changes]))
        except PenstockError as error:
            self._patience.note(work[0].endpoint, [error])
            raise

    def write(self, batch: ChangeBatch) -> Sequence[Stopped]:
        endpoint = self._patience.endpoint()
        stopped: Sequence[Stopped]
        if self._by_table or not batch.tables:
            stopped = self._write_tables(endpoint, batch)
        else:
            changes = replace(batch, spark=None, messages=())
            work = [tasks.BatchWork(endpoint, changes)]
            here = self._workers.are_local or are_few(batch.tables)
            (stopped,) = self._workers.results(tasks.write_batch, work, here=here)
        self._patience.note(endpoint, [table.error for table in stopped])
        return stopped

    def _write_tables(self, endpoint: Endpoint, batch: ChangeBatch) -> Sequence[Stopped]:
        work = [tasks.TableBatch(endpoint, table, batch.start, batch.end) for table in batch.tables]
        here = are_few(batch.tables)
        parts = [work] if here else [[each] for each in work]
        stopped = self._workers.results(tasks.write_tables, parts, here=here)
        tasks.move_on(endpoint, batch)
        return [table for part in stopped for table in part]

    def expect(self, source: str, tables: Mapping[TableId, TableName]) -> None: ...

    def describe(self, source: str, deliveries: Sequence[Delivery]) -> None: ...

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None:
        with self._endpoint.session() as connection:
            SqlLedger(connection, self._endpoint.stream(source)).hold(table, position, why)

    def forget(self, source: str, table: TableId) -> None:
        stream = self._endpoint.stream(source)
        with self._endpoint.session() as connection:
            table_copy.drop(connection, stream, table)
            SqlLedger(connection, stream).forget(table)

    def tear_down(self) -> None:
        with self._endpoint.session() as connection:
            sql_ledger.create(connection)
            for stream in map(self._endpoint.stream, self._sources):
                table_copy.drop(connection, stream)
                SqlLedger(connection, stream).erase()
        self.close()

    def close(self) -> None:
        close_idle(self._endpoint.conninfo)

"""PostgreSQL as a destination: the driver's part.

The driver plans; rows are read and written by Spark's tasks (`writing.py`, `copying.py`), or by the driver
itself where a task would be but a detour: for few rows, and for a single task on the driver's own machine.
How far things came is remembered in the destination's database, in the transactions that write the data
(`ledger.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.config import DestinationConfig
from penstock.config.destinations import PostgresOptions
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.postgres import copying, ledger, writing
from penstock.destinations.postgres.endpoint import Endpoint
from penstock.destinations.postgres.session import about, close_idle
from penstock.destinations.protocol import Recorded, TableChanges, TableCopy
from penstock.model import Lsn, TableId
from penstock.model.errors import PenstockError
from penstock.spark.tasks import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = TypeVar("Work")

FEW_ROWS = 2_000
SMALL_BYTES = 1_000_000
"""Up to here the driver writes by itself: a Spark job takes tens of milliseconds, and as much of a core."""


class PostgresTarget:
    """A `Target`."""

    remembers = True

    def __init__(self, pipeline: str, config: DestinationConfig, sources: Sequence[str]) -> None:
        self.name = config.name
        options: PostgresOptions = config.settings(PostgresOptions)
        self._endpoint = Endpoint(
            pipeline,
            config.name,
            options.conninfo(),
            options.source_column if len(sources) > 1 else None,
            options.create_tables,
        )
        self._by_table = options.consistency == "table"
        self._entered: set[str] = set()
        self._sources = tuple(sources)
        self._spark: SparkSession | None = None

    def open(self, spark: SparkSession) -> None:
        self._spark = spark
        with self._endpoint.session() as connection:
            ledger.create(connection)

    def position(self, source: str) -> Lsn | None:
        with self._endpoint.session() as connection:
            return ledger.position(connection, self._endpoint.stream(source))

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:
        with self._endpoint.session() as connection:
            return ledger.recorded(connection, self._endpoint.stream(source))

    def copy_table(self, copy: TableCopy) -> int:
        endpoint, table = self._endpoint, copy.delivery.table.name
        with endpoint.session() as connection, about(table):
            place = copying.begin(connection, endpoint, copy)
            format = copying.format_for(connection, place)
        if copy.rows is not None:
            with explained():
                told = copying.copy_rows(endpoint, copy.id, place, copy.rows)
            _raise_first(told)
        else:
            parts = [
                copying.CopyPart(endpoint, copy.id, place, number, copy.conninfo, copy.snapshot, part, format)
                for number, part in enumerate(copy.ranges)
            ]
            small = sum(part.bytes for part in copy.ranges) <= SMALL_BYTES
            self._do(copying.copy_part, parts, here=small)
        with endpoint.session() as connection, about(table):
            return copying.finish(connection, place, copy.id)

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:
        work = [writing.Handover(self._endpoint, copy, changes, position)]
        self._do(writing.hand_over, work, here=_are_few([changes]))

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        work = [writing.Handover(self._endpoint, None, changes, position)]
        self._do(writing.hand_over, work, here=_are_few([changes]))

    def write(self, batch: ChangeBatch) -> Sequence[tuple[TableId, PenstockError]]:
        if self._by_table or not batch.tables:
            stopped = self._write_tables(batch)
        else:
            changes = replace(batch, spark=None, messages=())
            work = [writing.Batch(self._endpoint, changes)]
            here = self._is_local or _are_few(batch.tables)
            (stopped,) = self._do(writing.write_batch, work, here=here)
        return [(one.table, one.error) for one in stopped]

    def _write_tables(self, batch: ChangeBatch) -> list[writing.Stopped]:
        endpoint = self._endpoint
        if batch.source not in self._entered:
            writing.enter(endpoint, batch.source)
            self._entered.add(batch.source)
        work = [writing.TableBatch(endpoint, table, batch.start, batch.end) for table in batch.tables]
        outcomes = self._do(writing.write_table, work, here=_are_few(batch.tables))
        writing.move_on(endpoint, batch)
        return [outcome for outcome in outcomes if outcome is not None]

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None:
        with self._endpoint.session() as connection:
            ledger.hold(connection, self._endpoint.stream(source), table, position, why)

    def forget(self, source: str, table: TableId) -> None:
        stream = self._endpoint.stream(source)
        with self._endpoint.session() as connection:
            copying.drop(connection, stream, table)
            ledger.forget(connection, stream, table)

    def tear_down(self) -> None:
        with self._endpoint.session() as connection:
            ledger.create(connection)
            for stream in map(self._endpoint.stream, self._sources):
                copying.drop(connection, stream)
                ledger.erase(connection, stream)
        self.close()

    def close(self) -> None:
        self._spark = None
        close_idle(self._endpoint.conninfo)

    @property
    def _is_local(self) -> bool:
        """Whether a task would run on this machine, in a process beside this one."""
        assert self._spark is not None
        master = str(self._spark.sparkContext.master)
        return master.startswith("local") and not master.startswith("local-cluster")

    def _do(self, function: Callable[[Work], Any], work: Sequence[Work], *, here: bool) -> list[Any]:
        """A task for each piece of work, or, where tasks would cost more than the work, here and now; the
        first error among what they tell is raised."""
        assert self._spark is not None, "open() comes first"
        if here or not work:
            told = [function(one) for one in work]
        else:
            with explained():
                told = self._spark.sparkContext.parallelize(work, len(work)).map(function).collect()
        _raise_first(told)
        return told


def _are_few(changes: Sequence[TableChanges]) -> bool:
    return sum(part.rows for table in changes for run in table.runs for part in run.slices) <= FEW_ROWS


def _raise_first(told: Sequence[Any]) -> None:
    for one in told:
        if isinstance(one, PenstockError):
            raise one

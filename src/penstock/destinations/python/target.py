"""A user's class, driven as the built-in destinations are.

It does not remember a position with its data, so after a crash it may be given a batch, or a copy, a second
time; `ChangeBatch.start` and `end`, and `(commit_lsn, seq)` of every change, are there to recognise it by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.destinations.batch import ChangeBatch
from penstock.destinations.protocol import (
    Delivery,
    Destination,
    Recorded,
    Stopped,
    TableChanges,
    TableCopy,
    Traits,
)
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import DestinationFailed, PenstockError, Scope
from penstock.model.secrets import without_secrets
from penstock.spark.snapshot.frames import typed_frame, typed_rows
from penstock.spark.tasks import without_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CustomTarget:
    traits = Traits(wants_messages=True)
    reloads = None
    snapshots = None

    def __init__(self, name: str, destination: Destination) -> None:
        self.name = name
        self._destination = destination
        self._spark: SparkSession

    def open(self, spark: SparkSession) -> None:
        self._spark = spark

    def position(self, source: str) -> Lsn | None:  # noqa: ARG002
        return None

    def begin(self, source: str, position: Lsn) -> None: ...

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:  # noqa: ARG002
        return {}

    def copy_table(self, copy: TableCopy) -> int:
        table = copy.delivery.table
        rows = typed_frame(self._spark, copy, table) if copy.rows is None else typed_rows(copy.rows, table)
        with self._in_its_code():
            self._destination.truncate_table(table)
            self._destination.write_table_rows(table, rows)
        return 0

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:  # noqa: ARG002
        self.catch_up(changes, position)

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        if any(run.slices or run.follow for run in changes.runs):
            for _, error in self.write(
                ChangeBatch(changes.delivery.source, changes.start, position, (changes,))
            ):
                raise error

    def write(self, batch: ChangeBatch) -> Sequence[Stopped]:
        """Write the batch; where a table's changes cannot be read, return it, and write the others."""
        stopped: list[Stopped] = []
        while batch.tables or batch.messages:
            try:
                with self._in_its_code():
                    self._destination.write_events(batch.on(self._spark))
                break
            except PenstockError as error:
                refused = [
                    changes
                    for changes in batch.tables
                    if changes.delivery.table.name == error.where.get("table")
                ]
                if error.scope is not Scope.TABLE or not refused:
                    raise
                stopped += [Stopped(changes.delivery.id, error) for changes in refused]
                batch = replace(
                    batch, tables=tuple(changes for changes in batch.tables if changes not in refused)
                )
        return stopped

    def expect(self, source: str, tables: Mapping[TableId, TableName]) -> None: ...

    def describe(self, source: str, deliveries: Sequence[Delivery]) -> None: ...

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None: ...

    def forget(self, source: str, table: TableId) -> None: ...

    def close(self) -> None: ...

    def tear_down(self) -> None: ...

    @contextmanager
    def _in_its_code(self) -> Iterator[None]:
        """Raise errors of the user's code as they are, with the line that raised them; what Spark raises in
        it, without the value that it could not take."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            line = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else None
            spark = isinstance(error, Py4JJavaError | PySparkException)
            message = without_secrets(f"{type(error).__name__}: {without_values(error) if spark else error}")
            raise DestinationFailed(message[:1000], destination=self.name, line=line) from error

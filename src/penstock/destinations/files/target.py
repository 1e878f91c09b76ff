"""Files with a registry as a destination: the driver's part.

Files come first, then, in one transaction at the source, their entries in the registry and how far the stream
is (`source_records.py`). What a crash leaves, after each step of a batch:
1. some files are written, in folders of their own: nobody knows of them; the next start removes them, or,
   after an error, the next attempt, and the batch, whatever its extent then, is written into other folders;
2. the transaction is committed: the batch is done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog

from penstock.config import Config, DestinationConfig
from penstock.destinations import copy_records, ledger, sql_ledger
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.files import schema_yml, unfinished_copies, written_log
from penstock.destinations.files.change_files import Writer
from penstock.destinations.files.cleanup import expire, sweep
from penstock.destinations.files.compression import Compression, Meter
from penstock.destinations.files.full_copy import ExportPart, Sheet, export_part, export_partition
from penstock.destinations.files.layout import FULL, SCHEMA, Layout
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.permissions import Permissions
from penstock.destinations.files.registry import FileEntry, Registry
from penstock.destinations.files.reloading import FilesReloading
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import OWNER, Storage
from penstock.destinations.files.unfinished_copies import FinishedCopy
from penstock.destinations.ledger import Known, StreamId
from penstock.destinations.protocol import Delivery, Recorded, Stopped, TableChanges, TableCopy, Traits
from penstock.destinations.work import SMALL_BYTES, Workers, partition_results
from penstock.model import ZERO, Lsn, TableId, TableName
from penstock.model.errors import DestinationWentBack, PenstockError
from penstock.postgres import catalog
from penstock.postgres.connection import connect
from penstock.postgres.exported_snapshot import join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.postgres.connection import Connection

CLEANING = 600.0
"""Seconds between two looks for files that are old enough to go."""


class FilesTarget:
    """A `Target`."""

    snapshots = None
    traits = Traits(
        keeps_position=True,
        keeps_tables=True,
        waits_for_interval=True,
        recopies_on_new_key=True,
        wants_ddl=True,
    )

    def __init__(self, config: Config, destination: DestinationConfig) -> None:
        self.name = destination.name
        self._options: FilesOptions = destination.settings(FilesOptions)
        kept = self._options.file_registry
        options = self._options
        self._storage = Storage(options.base, destination.name, options.keys, Permissions.of(options))
        self._layout = Layout(self._options.pattern(len(config.sources)), self._options.timestamp_format)
        self._records = {
            source.name: SourceRecords(
                source.conninfo(),
                StreamId(config.pipeline, destination.name, source.name),
                Registry(kept.schema_name, config.pipeline, destination.name, kept.enabled),
            )
            for source in config.sources
        }
        self.reloads = FilesReloading(self._records, self._storage, options.reload_coordination)
        self._writer: Writer
        self._owner = f"pipeline {config.pipeline}, destination {destination.name}"
        self._begun: set[str] = set()
        self._cleaned: dict[str, float] = {}
        """When the files of each source were looked at last."""
        self._log = structlog.get_logger("penstock.files").bind(destination=destination.name)

    def open(self, spark: SparkSession) -> None:
        settings = self._options.compression
        self._writer = Writer(
            self._storage, self._layout, Compression(settings.algorithm, settings.level), Workers(spark)
        )

    def position(self, source: str) -> Lsn | None:
        """Return the stream's position. Asked for when a source's stream begins, and only then is that source
        needed: what an earlier run left is removed before anything new is written."""
        records = self._records[source]
        if source not in self._begun:
            records.open()
            self._storage.claim(self._owner, anew=self._position(records) is None)
            sweep(self._storage, self._layout, records, self.reloads.log(records))
            self._begun.add(source)
        return self._position(records)

    def _position(self, records: SourceRecords) -> Lsn | None:
        with records.transaction() as connection:
            return records.ledger(connection).position()

    def begin(self, source: str, position: Lsn) -> None:
        records = self._records[source]
        with records.transaction() as connection:
            ledger.begin(records.ledger(connection), position)

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:
        records = self._records[source]
        with records.transaction() as connection:
            return ledger.recorded(records.ledger(connection))

    # Full copies

    def expect(self, source: str, tables: Mapping[TableId, TableName]) -> None:
        records = self._records[source]
        with records.transaction() as connection:
            records.registry.expect(connection, tables)

    def copy_table(self, copy: TableCopy) -> int:
        delivery = copy.delivery
        table, records = delivery.table.name, self._records[delivery.source]
        nothing = copy.rows is None and not copy.ranges
        with records.aside() as connection:
            unfinished_copies.abandon(connection, records.stream, delivery.id, self._storage)
            batch, folder = self._writer.folders(records, connection).next(connection, table)
            unfinished_copies.begin(
                connection, records.stream, delivery.id, copy.id, "" if nothing else folder
            )
            records.registry.reloading(connection, delivery.table)
        finished = None if nothing else self._export(copy, batch, folder)
        with records.aside() as connection:
            unfinished_copies.finish(connection, copy.id, finished)
        return finished.rows if finished else 0

    def _export(self, copy: TableCopy, batch: datetime, folder: str) -> FinishedCopy:
        settings = self._options.compression
        compression = Compression(settings.algorithm, settings.full)
        sheet = Sheet(self._storage, folder, compression, copy.delivery.table.column_names)
        if copy.rows is not None:
            written = partition_results(copy.rows, partial(export_partition, sheet))
        else:
            parts = [
                ExportPart(sheet, number, copy.conninfo, copy.snapshot, part)
                for number, part in enumerate(copy.ranges)
            ]
            small = sum(part.bytes for part in copy.ranges) <= SMALL_BYTES
            written = self._writer.workers.results(export_part, parts, here=small)
        rows = sum(part.rows for part in written)
        with connect(copy.conninfo) as connection:
            join(connection, copy.snapshot)
            (described,) = catalog.detailed(connection, [copy.delivery.id])
            text = schema_yml.document(connection, described, copy.delivery, rows, copy.lsn)
        copy.rows_read()
        data, meter = sheet.finish(f"{FULL}.csv{compression.suffix}", written)
        described_by = self._storage.write(f"{folder}/schema.yml", [text])
        finished = FinishedCopy(batch, copy.lsn, rows, data, described_by)
        written_log.tell(
            self._log, copy.delivery.source, _entries_of(copy.delivery.table.name, finished, meter)
        )
        return finished

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:
        self._deliver_table(changes, position, copy)

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        self._deliver_table(changes, position, None)

    def _deliver_table(self, changes: TableChanges, position: Lsn, copy: str | None) -> None:
        """Bring a table to where the stream is: by a copy, if there is one, and by its changes since."""
        delivery = changes.delivery
        records, table = self._records[delivery.source], delivery.table.name
        with records.transaction() as connection:
            stands = records.ledger(connection).position()
            known = records.ledger(connection).known(delivery.id).get(delivery.id)
            if copy is not None:
                records.registry.look_again(connection, table, unfinished_copies.batch(connection, copy))
        if ledger.is_done(known, stands, copy, delivery.table.version, position):
            return
        self._refuse_if_behind(records, stands, ZERO)
        if copy is None:
            self._refuse_if_behind(records, ledger.stood(known, stands), changes.start)
        delta, failed = self._writer.write([changes], records)
        for error in failed.values():
            raise error
        with records.transaction() as connection:
            kept = records.ledger(connection)
            stands = kept.lock()
            known = kept.known(delivery.id).get(delivery.id)
            if ledger.is_done(known, stands, copy, delivery.table.version, position):
                return  # done by an earlier attempt, whose commit was on its way
            entries = delta
            if copy is not None:
                finished = unfinished_copies.take(connection, copy)
                entries = [*_entries_of(table, finished), *delta]
                self.reloads.log(records).exported(
                    connection, changes, finished.rows if finished else 0, delta
                )
            ends = self._register(records, connection, entries)
            own = position if stands != position else None
            copied = copy or (known.copy if known else "")
            now = Known(copied, delivery.table.version, own, None, made=True)
            kept.record(delivery, now)
            records.registry.state(connection, delivery.table, "streaming", position)
        records.registered(delta, ends)
        written_log.tell(self._log, delivery.source, delta)

    # The stream

    def write(self, batch: ChangeBatch) -> Sequence[Stopped]:
        records = self._records[batch.source]
        reached = self._position(records)
        if reached is not None and reached >= batch.end:
            with records.transaction() as connection:
                return ledger.stopped_before(records.ledger(connection).known(), batch.tables)
        self._refuse_if_behind(records, reached, batch.start)
        entries, failed = self._writer.write(batch.tables, records, batch.ddl)
        with records.transaction() as connection:
            kept = records.ledger(connection)
            reached = kept.lock()
            known = kept.known()
            if reached is not None and reached >= batch.end:
                return ledger.stopped_before(
                    known, batch.tables
                )  # done by an earlier attempt, whose commit was on its way
            ends = self._register(records, connection, entries)
            if batch.markers or batch.refused_markers:
                names = kept.names()
                self.reloads.log(records).note(connection, batch.markers, names)
                self.reloads.log(records).refuse(connection, batch.refused_markers, names)
            for changes in batch.tables:
                delivery = changes.delivery
                copy, error = known[delivery.id].copy, failed.get(delivery.id)
                now = Known(copy, delivery.table.version, None, None, made=True)
                if error is not None:
                    now = Known(copy, known[delivery.id].version, batch.start, error, made=True)
                kept.record(delivery, now)
                mode = "streaming" if error is None else "stopped"
                records.registry.state(connection, delivery.table, mode, ends.get(delivery.table.name))
            kept.move(batch.end, batch.complete_through)
            records.registry.complete(connection, batch.complete_through)
        records.registered(entries, ends)
        written_log.tell(self._log, batch.source, entries)
        self._clean_up(records)
        return [Stopped(*failure) for failure in failed.items()]

    def _refuse_if_behind(self, records: SourceRecords, stands: Lsn | None, start: Lsn) -> None:
        """Raise if there would be a gap; files that left the registry are swept when the stream restarts."""
        try:
            ledger.refuse_if_behind(stands, start)
        except DestinationWentBack:
            self._begun.discard(records.stream.source)
            raise

    def _register(
        self, records: SourceRecords, connection: Connection, entries: Sequence[FileEntry]
    ) -> dict[TableName, Lsn]:
        shown = [self._storage.shown(entry.file.path) for entry in entries]
        return records.registry.register(connection, entries, shown)

    def _clean_up(self, records: SourceRecords) -> None:
        days = self._options.file_registry.cleanup_after_days
        source, now = records.stream.source, time.monotonic()
        due = now - self._cleaned.get(source, -CLEANING) >= CLEANING
        if days and records.registry.enabled and due:
            self._cleaned[source] = now
            try:
                expire(self._storage, records, days)
            except PenstockError as error:  # what is left is removed the next time
                self._log.warning("old files were not removed", error=str(error))

    def describe(self, source: str, deliveries: Sequence[Delivery]) -> None: ...

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None:
        records = self._records[source]
        with records.transaction() as connection:
            records.ledger(connection).hold(table, position, why)
            records.registry.stop(connection, table)

    def forget(self, source: str, table: TableId) -> None:
        records = self._records[source]
        with records.transaction() as connection:
            unfinished_copies.abandon(connection, records.stream, table, self._storage)
            records.ledger(connection).forget(table)
            self.reloads.log(records).forget(connection, table)
            records.registry.forget(connection, table)

    def tear_down(self) -> None:
        """Files stay, and with them `file_log`, which says where they are."""
        for records in self._records.values():
            with records.transaction() as connection:
                sql_ledger.create(connection)
                copy_records.drop(connection, records.stream)
                records.ledger(connection).erase()
                records.registry.erase(connection)
        self._storage.remove_if_possible([OWNER])
        self.close()

    def close(self) -> None:
        for records in self._records.values():
            records.close()


def _entries_of(table: TableName, copy: FinishedCopy | None, meter: Meter | None = None) -> list[FileEntry]:
    if copy is None:
        return []
    return [
        FileEntry(table, copy.batch, SCHEMA, copy.schema, copy.lsn, copy.lsn),
        FileEntry(table, copy.batch, FULL, copy.data, copy.lsn, copy.lsn, copy.rows, meter=meter),
    ]

"""The files of changes: one for each run of a table, written by tasks or by the driver.

A run begins where the table's schema changed. So what came before a change of the schema and what came after
it are never in one file, and the statements (`ddl.txt`) stand in the folder of what came after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from penstock.destinations import copy_records
from penstock.destinations.files import cleanup, ddl_txt
from penstock.destinations.files.change_lines import ChangeLines
from penstock.destinations.files.compression import Compression, Meter
from penstock.destinations.files.layout import DDL, STREAMING, Layout
from penstock.destinations.files.registry import FileEntry, Registry
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import Storage, Written
from penstock.destinations.protocol import Run, TableChanges
from penstock.destinations.work import Workers, are_few, raise_first
from penstock.model import Lsn, TableId, TableName
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError, Scope
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class ChangesFile:
    """What is to be written where."""

    storage: Storage
    folder: str
    compression: Compression
    changes: TableChanges
    run: Run

    @property
    def path(self) -> str:
        return f"{self.folder}/{STREAMING}.csv{self.compression.suffix}"


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    file: Written
    rows: int
    start: Lsn
    end: Lsn
    meter: Meter


def write_changes(job: ChangesFile) -> WrittenChanges | None:
    """Write the file of a run's changes and return it; None if there is no change. Runs on executors."""
    try:
        lines, meter = ChangeLines(job.changes, job.run), Meter()
        blocks = lines.blocks()
        first = next(blocks, None)
        if first is None:
            return None
        file = job.storage.write(job.path, job.compression.compressed(chain([first], blocks), meter))
    except PenstockError as error:
        raise error.at(table=job.run.delivery.table.name) from None
    assert lines.first is not None
    assert lines.last is not None
    return WrittenChanges(file, lines.rows, lines.first, lines.last, meter)


@dataclass(frozen=True, slots=True)
class _Planned:
    """The files of a run: its changes, and what is told before them."""

    batch: datetime
    job: ChangesFile
    notes: ddl_txt.SchemaNotes

    @property
    def table(self) -> TableId:
        return self.job.run.delivery.id


@dataclass(frozen=True, slots=True)
class Folders:
    """Gives each batch and each copy a folder that nobody else has, nor had."""

    source: str
    layout: Layout
    registry: Registry
    set_aside: frozenset[str]
    """Those of copies that were not handed over, maybe of another table that had this one's name. Whoever
    gives such a copy up removes its folder."""
    storage: Storage | None
    """Where no registry tells, what an earlier process left there."""

    def next(self, connection: Connection, table: TableName) -> tuple[datetime, str]:
        """Return the timestamp and the folder of a table's next batch."""

        def is_free(batch: datetime) -> bool:
            folder = self._folder(table, batch)
            return folder not in self.set_aside and not (self.storage and self.storage.names(folder))

        batch = self.registry.take_next(connection, table, is_free)
        return batch, self._folder(table, batch)

    def _folder(self, table: TableName, batch: datetime) -> str:
        return self.layout.folder(self.source, table, batch)


@dataclass(frozen=True, slots=True)
class Writer:
    storage: Storage
    layout: Layout
    compression: Compression
    workers: Workers

    def write(
        self, tables: Sequence[TableChanges], records: SourceRecords, recorded: Sequence[DdlEvent] = ()
    ) -> tuple[list[FileEntry], dict[TableId, PenstockError]]:
        """Write the files of these changes; return what is to be registered, and which tables could not be
        written. Until they are registered they are drafts. If the error is not one table's, nothing stays."""
        cleanup.remove_drafts(self.storage, records)
        with records.transaction() as connection:
            folders = self.folders(records, connection)
            planned = [
                plan for changes in tables for plan in self._plan(folders, connection, changes, recorded)
            ]
        records.drafts.update(plan.job.folder for plan in planned)
        outcomes = self.workers.outcomes(write_changes, [plan.job for plan in planned], here=are_few(tables))
        pairs = list(zip(planned, outcomes, strict=True))
        failed = {plan.table: outcome for plan, outcome in pairs if isinstance(outcome, PenstockError)}
        try:
            raise_first([error for error in failed.values() if error.scope is not Scope.TABLE])
            entries = [
                entry
                for plan, outcome in pairs
                if plan.table not in failed and not isinstance(outcome, PenstockError)
                for entry in self._entries(plan, outcome)
            ]
        except PenstockError:
            with suppress(PenstockError):  # what cannot be removed now is removed before the next attempt
                cleanup.remove_folders(self.storage, [plan.job.folder for plan in planned])
            raise
        records.drafts.difference_update(
            plan.job.folder for plan, outcome in pairs if not (outcome or plan.notes)
        )
        return entries, failed

    def folders(self, records: SourceRecords, connection: Connection) -> Folders:
        return Folders(
            records.stream.source,
            self.layout,
            records.registry,
            frozenset(copy_records.set_aside(connection, records.stream)),
            None if records.registry.enabled else self.storage,
        )

    def _plan(
        self,
        folders: Folders,
        connection: Connection,
        changes: TableChanges,
        recorded: Sequence[DdlEvent],
    ) -> Iterator[_Planned]:
        """Plan the files. Recorded DDL goes with the first change of columns, or else with the last run."""
        runs = changes.runs
        follows = next((place for place, run in enumerate(runs) if run.follow), len(runs) - 1)
        for place, run in enumerate(runs):
            table = run.delivery.table.name
            events = [event for event in recorded if event.table == run.delivery.id]
            notes = ddl_txt.SchemaNotes(
                tuple(events) if place == follows else (),
                ddl_txt.statements(connection, run.delivery.table, run.follow) if run.follow else (),
            )
            batch, folder = folders.next(connection, table)
            yield _Planned(batch, ChangesFile(self.storage, folder, self.compression, changes, run), notes)

    def _entries(self, planned: _Planned, written: WrittenChanges | None) -> Iterable[FileEntry]:
        job, batch, has_ddl = planned.job, planned.batch, bool(planned.notes)
        table, start = job.run.delivery.table.name, job.changes.start
        if has_ddl:
            file = self.storage.write(f"{job.folder}/{DDL}.txt", [planned.notes.text(table, batch)])
            yield FileEntry(table, batch, DDL, file, start, start, has_ddl=True)
        if written is not None:
            yield FileEntry(
                table,
                batch,
                STREAMING,
                written.file,
                written.start,
                written.end,
                written.rows,
                has_ddl,
                written.meter,
            )

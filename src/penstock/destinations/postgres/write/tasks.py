"""What tasks do: write a batch, hand a copy over, catch a table up. Each is one transaction.

    1. The stream is locked, or the table where each is written by itself. A second attempt waits here.
    2. What is recorded says what of the work is done already; that is left out. It also says whether the
       destination has all that comes before: if not, it went back, and nothing is written.
    3. Rows are written, table by table within savepoints: one that fails stays as it was.
    4. Positions are recorded.
    5. Commit.

A crash anywhere before the commit's end leaves nothing of it; after it, step 2 finds it all done.

Foreign keys are at work where the role may not write without them. What one refuses is tried again after
the batch's other tables, which may have what it misses. A deferred one is looked at by step 5: if it refuses
that, all is done once more, with each table's looked at in its turn, so that it stops alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import psycopg

from penstock.destinations import per_table
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.ledger import Known, Ledger, is_done, refuse_if_behind, stood, stopped_before
from penstock.destinations.per_table import ToWrite
from penstock.destinations.postgres.copy import table_copy
from penstock.destinations.postgres.endpoint import Endpoint
from penstock.destinations.postgres.session import about, of_table
from penstock.destinations.postgres.table import definition
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.table.trust import UNWRITTEN, check_free, check_rows
from penstock.destinations.postgres.write.apply import FollowedSchema, apply_changes
from penstock.destinations.protocol import Delivery, Stopped, TableChanges
from penstock.destinations.sql_ledger import SqlLedger
from penstock.model import ZERO, Lsn, TableId
from penstock.model.errors import ForeignKeyRefused, PenstockError, RefusedAtTheEnd, RowsReferenced, Scope
from penstock.postgres.connection import Connection

T = TypeVar("T")

OF_OTHERS = (ForeignKeyRefused, RowsReferenced)
"""What may pass when other tables are written."""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """To be written."""

    endpoint: Endpoint
    changes: ChangeBatch


@dataclass(frozen=True, slots=True)
class TableBatch:
    """One table's changes of a batch, to be written by themselves."""

    endpoint: Endpoint
    changes: TableChanges
    start: Lsn
    end: Lsn


@dataclass(frozen=True, slots=True)
class Handover:
    """A finished copy to be made visible, or (without a copy) a stopped table to be caught up."""

    endpoint: Endpoint
    copy: str | None
    changes: TableChanges
    position: Lsn


def _written(write: Callable[[bool], T]) -> T:
    """Write, and if a deferred constraint refuses it, once more: with each table's looked at in its turn."""
    try:
        return write(False)
    except RefusedAtTheEnd:
        return write(True)


def write_batch(batch: BatchWork) -> Sequence[Stopped]:
    return _written(partial(_write_batch, batch))


def _write_batch(batch: BatchWork, in_turn: bool) -> Sequence[Stopped]:
    endpoint, changes = batch.endpoint, batch.changes
    with endpoint.session() as connection:
        ledger = SqlLedger(connection, endpoint.stream(changes.source))
        stands = ledger.lock()
        known = ledger.known()
        if stands is not None and stands >= changes.end:
            return stopped_before(known, changes.tables)
        refuse_if_behind(stands, changes.start)
        assert stands is not None
        stopped = TableWriter(connection, endpoint, stands, in_turn=in_turn).write(changes.tables, known)
        ledger.move(changes.end, changes.complete_through)
    return stopped


def write_tables(batches: Sequence[TableBatch]) -> list[Stopped]:
    """Write them one after the other, each in a transaction of its own."""
    stopped: list[Stopped] = []
    for batch in batches:
        work = replace(batch, endpoint=batch.endpoint.after(stopped))
        stopped += _written(partial(_write_table, work))
    return stopped


def _write_table(batch: TableBatch, in_turn: bool) -> Sequence[Stopped]:
    endpoint, changes = batch.endpoint, batch.changes
    with endpoint.session() as connection:
        ledger = SqlLedger(connection, endpoint.stream(changes.delivery.source))
        begun = per_table.begin(ledger, changes, batch.start, batch.end)
        if not isinstance(begun, ToWrite):
            return [begun] if begun is not None else []
        writer = TableWriter(connection, endpoint, begun.stands, batch.end, in_turn)
        known = {changes.delivery.id: begun.known} if begun.known is not None else {}
        return writer.write([changes], known)


def move_on(endpoint: Endpoint, batch: ChangeBatch) -> None:
    with endpoint.session() as connection:
        per_table.move_on(SqlLedger(connection, endpoint.stream(batch.source)), batch)


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Writes changes of tables within a transaction; a table that cannot be written is left as it was."""

    connection: Connection
    endpoint: Endpoint
    stands: Lsn
    """Where the stream stands: changes that committed before are there already."""
    reaches: Lsn | None = None
    """What to record as the tables' position; None: it goes with the stream."""
    in_turn: bool = False
    """Whether deferred constraints are looked at with each table."""

    def write(self, tables: Iterable[TableChanges], known: Mapping[TableId, Known]) -> list[Stopped]:
        """Write them; return, and record, those that could not be written."""
        pending, stopped = {changes.delivery.id: changes for changes in tables}, list[Stopped]()
        while pending:
            refused: list[Stopped] = []
            for id, changes in pending.items():
                error = self._attempt(changes, known.get(id), self.endpoint.after(refused))
                refused += [Stopped(id, error)] if error is not None else []
            again = {each.table for each in refused if isinstance(each.error, OF_OTHERS)}
            if len(again) == len(pending):  # none of them made way for another
                again = set()
            for each in refused:
                if each.table not in again:
                    self._stop(pending[each.table], known.get(each.table), each.error)
                    stopped.append(each)
            pending = {id: changes for id, changes in pending.items() if id in again}
        return stopped

    def _attempt(
        self, changes: TableChanges, known: Known | None, endpoint: Endpoint
    ) -> PenstockError | None:
        start = self._start(known)
        if known is not None and _waits(known, start, changes):
            return known.error
        try:
            with self.connection.transaction():
                if self.in_turn:
                    self.connection.execute("set constraints all deferred")
                self._apply(endpoint, replace(changes, start=max(start, changes.start)), known)
                if self.in_turn:
                    self.connection.execute("set constraints all immediate")
            return None
        except psycopg.Error as failed:
            error = of_table(failed)
            if error.scope is not Scope.TABLE:
                raise
        except PenstockError as failed:
            error = failed
            if error.scope is not Scope.TABLE:
                raise
        return error.at(table=changes.delivery.table.name)

    def _apply(self, endpoint: Endpoint, changes: TableChanges, known: Known | None) -> None:
        delivery, first = changes.delivery, changes.runs[0].delivery
        ours, before = find_or_make(self.connection, endpoint.target(first), known, endpoint)
        apply_changes(self.connection, endpoint.target(first, ours=ours), changes, before)
        now = Known(known.copy if known else "", delivery.table.version, self.reaches, None, ours)
        if now != known:
            self._ledger(delivery).record(delivery, now)

    def _stop(self, changes: TableChanges, known: Known | None, error: PenstockError) -> None:
        start = self._start(known)
        if not _waits(known, start, changes):
            before = known or Known(copy="", version=UNWRITTEN, position=None, error=None, made=False)
            stands = replace(before, position=max(start, changes.start), error=error)
            self._ledger(changes.delivery).record(changes.delivery, stands)

    def _start(self, known: Known | None) -> Lsn:
        return known.position if known is not None and known.position is not None else self.stands

    def _ledger(self, delivery: Delivery) -> Ledger:
        return SqlLedger(self.connection, self.endpoint.stream(delivery.source))


def _waits(known: Known | None, start: Lsn, changes: TableChanges) -> bool:
    """Whether the table stopped before, and what it waits for is not among these changes."""
    return known is not None and known.error is not None and start < changes.start


def find_or_make(
    connection: Connection, target: TargetTable, known: Known | None, endpoint: Endpoint
) -> tuple[bool, FollowedSchema]:
    """Return whether the table is ours, and the schema it followed. One never written is made if missing."""
    if known is not None and known.version != UNWRITTEN:
        return known.made, FollowedSchema(known.version)
    check_free(connection, endpoint, target.delivery)
    before = FollowedSchema(target.delivery.table.version)
    if definition.exists(connection, target.name):
        definition.check(connection, target)
        check_rows(connection, endpoint, target)
        return False, before
    if not endpoint.create_tables:
        raise definition.missing(target)
    definition.make(connection, target)
    definition.make_key(connection, target)
    return True, before


def hand_over(work: Handover) -> None:
    _written(partial(_hand_over, work))


def _hand_over(work: Handover, in_turn: bool) -> None:
    endpoint, delivery = work.endpoint, work.changes.delivery
    with endpoint.session() as connection:
        ledger = SqlLedger(connection, endpoint.stream(delivery.source))
        stands = ledger.lock()
        ledger.lock_table(delivery.id)
        known = ledger.known(delivery.id).get(delivery.id)
        if is_done(known, stands, work.copy, delivery.table.version, work.position):
            return
        refuse_if_behind(stands, ZERO)
        if work.copy is None:
            refuse_if_behind(stood(known, stands), work.changes.start)
        changes, first = work.changes, work.changes.runs[0].delivery
        copy = work.copy or (known.copy if known else "")
        with about(delivery.table.name):
            if work.copy is not None:
                handed = table_copy.hand_over(connection, endpoint, copy, made=bool(known and known.made))
                ours, table = handed.ours, handed.delivery.table
                before = FollowedSchema(table.version, table)
            else:
                ours, before = find_or_make(connection, endpoint.target(first), known, endpoint)
                if known is not None and known.position is not None:
                    changes = replace(changes, start=max(changes.start, known.position))
            apply_changes(connection, endpoint.target(first, ours=ours), changes, before)
            if in_turn:
                connection.execute("set constraints all immediate")
        own = work.position if stands != work.position else None
        now = Known(copy, delivery.table.version, own, None, ours)
        ledger.record(delivery, now)

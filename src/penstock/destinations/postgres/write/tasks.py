"""What tasks do: write a batch, hand a copy over, catch a table up. Each is one transaction.

    1. The stream is locked, or the table where each is written by itself. A second attempt waits here.
    2. What is recorded says what of the work is done already; that is left out. It also says whether the
       destination has all that comes before: if not, it went back, and nothing is written.
    3. Rows are written, table by table within savepoints: one that fails stays as it was.
    4. Positions are recorded.
    5. Commit.

A crash anywhere before the commit's end leaves nothing of it; after it, step 2 finds it all done.

Foreign keys are at work where the role may not write without them. What one refuses is tried again after
the batch's other tables, which may have what it misses; what others reference is deleted last of all. A
deferred one is looked at by step 5: if it refuses that, all is done once more, with the table's that it is
of looked at in its turn, so that it stops alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
from penstock.destinations.postgres.table.references import parents_first
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.table.trust import UNWRITTEN, check_free, check_rows
from penstock.destinations.postgres.write.apply import FollowedSchema, apply_changes
from penstock.destinations.postgres.write.referenced import LateDeletes
from penstock.destinations.protocol import Delivery, Kind, Stopped, TableChanges
from penstock.destinations.sql_ledger import SqlLedger
from penstock.model import ZERO, Lsn, TableId, TableName
from penstock.model.errors import ForeignKeyRefused, PenstockError, RefusedAtTheEnd, RowsReferenced, Scope
from penstock.postgres.connection import Connection

T = TypeVar("T")

InTurn = frozenset[TableName] | None
"""Of which tables deferred constraints are looked at with the table, and not at the end; None: of all."""

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


def _written(write: Callable[[InTurn], T]) -> T:
    """Write, and if a deferred constraint refuses it, once more: with its table's looked at in its turn."""
    in_turn: InTurn = frozenset()
    while True:
        try:
            return write(in_turn)
        except RefusedAtTheEnd as error:
            if in_turn is None:
                raise
            table: TableName = error.where["target"]
            in_turn = None if table in in_turn else in_turn | {table}


def write_batch(batch: BatchWork) -> Sequence[Stopped]:
    return _written(partial(_write_batch, batch))


def _write_batch(batch: BatchWork, in_turn: InTurn) -> Sequence[Stopped]:
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


def _write_table(batch: TableBatch, in_turn: InTurn) -> Sequence[Stopped]:
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
    in_turn: InTurn = frozenset()

    def write(self, tables: Iterable[TableChanges], known: Mapping[TableId, Known]) -> list[Stopped]:
        """Write them; return, and record, those that could not be written."""
        of_all = {changes.delivery.id: changes for changes in tables}
        late: dict[TableId, LateDeletes] = {}
        stopped, pending, hasty = list[Stopped](), list(of_all), len(of_all) > 1
        while pending:
            refused = self._write([of_all[id] for id in pending], known, late, hasty=hasty)
            again = [each.table for each in refused if isinstance(each.error, OF_OTHERS)]
            if len(again) == len(pending) and not hasty:  # none of them makes way for another
                again = []
            stopped += [each for each in refused if each.table not in again]
            hasty = len(again) < len(pending)
            targets = {id: of_all[id].delivery.target for id in again}
            pending = parents_first(self.connection, targets) if targets else []
        stopped += self._delete({id: deletes for id, deletes in late.items() if deletes.keys is not None})
        for id, error in stopped:
            error.at(table=of_all[id].delivery.table.name)
            self._stop(of_all[id], known.get(id), error)
        return stopped

    def _write(
        self,
        tables: Sequence[TableChanges],
        known: Mapping[TableId, Known],
        late: dict[TableId, LateDeletes],
        *,
        hasty: bool,
    ) -> list[Stopped]:
        refused: list[Stopped] = []
        for changes in tables:
            id, endpoint = changes.delivery.id, replace(self.endpoint.after(refused), hasty=hasty)
            late[id] = LateDeletes(self.connection)
            error = self._attempt(changes, known.get(id), endpoint, late[id])
            if error is not None:
                del late[id]
                refused.append(Stopped(id, error))
        return refused

    def _delete(self, late: Mapping[TableId, LateDeletes]) -> list[Stopped]:
        """Delete what is left to be deleted, of each table when nothing references it any more."""
        pending = dict(late)
        while pending:
            refused: list[Stopped] = []
            for id, deletes in pending.items():
                error = self._carried_out(deletes)
                refused += [Stopped(id, error)] if error is not None else []
            if len(refused) == len(pending):
                return refused
            pending = {id: pending[id] for id, _ in refused}
        return []

    def _carried_out(self, deletes: LateDeletes) -> PenstockError | None:
        try:
            with self.connection.transaction():
                deletes.carry_out()
                if deletes.target is not None:
                    look_in_turn(self.connection, deletes.target.name, self.in_turn)
            return None
        except psycopg.Error as failed:
            error = of_table(failed)
            if error.scope is not Scope.TABLE:
                raise
        except PenstockError as failed:
            error = failed
            if error.scope is not Scope.TABLE:
                raise
        return error

    def _attempt(
        self, changes: TableChanges, known: Known | None, endpoint: Endpoint, late: LateDeletes
    ) -> PenstockError | None:
        start = self._start(known)
        if known is not None and _waits(known, start, changes):
            return known.error
        try:
            with self.connection.transaction():
                self._apply(endpoint, replace(changes, start=max(start, changes.start)), known, late)
                look_in_turn(self.connection, changes.delivery.target, self.in_turn)
            return None
        except psycopg.Error as failed:
            error = of_table(failed)
            if error.scope is not Scope.TABLE:
                raise
        except PenstockError as failed:
            error = failed
            if error.scope is not Scope.TABLE:
                raise
        return error

    def _apply(
        self, endpoint: Endpoint, changes: TableChanges, known: Known | None, late: LateDeletes
    ) -> None:
        delivery, first = changes.delivery, changes.runs[0].delivery
        ours, before = find_or_make(self.connection, endpoint.target(first), known, endpoint)
        apply_changes(self.connection, endpoint.target(first, ours=ours), changes, before, late)
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


def _hand_over(work: Handover, in_turn: InTurn) -> None:
    """What foreign keys of tables that others reference refuse is done but for their deletes, and refused."""
    endpoint, delivery = work.endpoint, work.changes.delivery
    refused: PenstockError | None = None
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
        try:
            with about(delivery.table.name), connection.transaction():
                late = LateDeletes(connection)
                ours = _bring_up(connection, work, known, late)
                late.carry_out()
                look_in_turn(connection, delivery.target, in_turn)
        except OF_OTHERS as error:
            refused = error
            with suppress(PenstockError), about(delivery.table.name), connection.transaction():
                _bring_rows(connection, work, known, in_turn)
        else:
            own = work.position if stands != work.position else None
            copy = work.copy or (known.copy if known else "")
            ledger.record(delivery, Known(copy, delivery.table.version, own, None, ours))
    if refused is not None:
        raise refused


def _bring_up(connection: Connection, work: Handover, known: Known | None, late: LateDeletes) -> bool:
    """Hand the copy over, if there is one, and apply the changes; return whether the table is ours."""
    endpoint, first = work.endpoint, work.changes.runs[0].delivery
    if work.copy is None:
        return _catch_up(connection, work, known, late)
    handed = table_copy.hand_over(connection, endpoint, work.copy, made=bool(known and known.made))
    before = FollowedSchema(handed.delivery.table.version, handed.delivery.table)
    apply_changes(connection, endpoint.target(first, ours=handed.ours), work.changes, before, late)
    return handed.ours


def _catch_up(connection: Connection, work: Handover, known: Known | None, late: LateDeletes) -> bool:
    endpoint, changes, first = work.endpoint, work.changes, work.changes.runs[0].delivery
    ours, before = find_or_make(connection, endpoint.target(first), known, endpoint)
    if known is not None and known.position is not None:
        changes = replace(changes, start=max(changes.start, known.position))
    apply_changes(connection, endpoint.target(first, ours=ours), changes, before, late)
    return ours


def _bring_rows(connection: Connection, work: Handover, known: Known | None, in_turn: InTurn) -> None:
    """Write the rows alone, and delete none, where that can be done again: others may wait for them."""
    delivery = work.changes.delivery
    if delivery.kind is not Kind.CLONE or not delivery.key:
        return
    if work.copy is not None:
        table_copy.begin_hand_over(connection, work.endpoint, work.copy, made=bool(known and known.made))
    else:
        _catch_up(connection, work, known, LateDeletes(connection))
    look_in_turn(connection, delivery.target, in_turn)


def look_in_turn(connection: Connection, table: TableName, in_turn: InTurn) -> None:
    """Look at the table's deferred constraints now, if it is its turn."""
    if in_turn is None or table in in_turn:
        connection.execute("set constraints all immediate; set constraints all deferred")

"""Committing table by table: the changes of each table in a transaction of their own, many at once.

    1. Each table is locked, written, and recorded as standing at the batch's end, ahead of its stream.
    2. When all are, the stream is recorded as standing there, and its tables as standing with it.

A crash in between leaves some tables ahead: the next attempt finds them done.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.destinations.batch import ChangeBatch
from penstock.destinations.ledger import Known, Ledger, refuse_if_behind, stopped_before
from penstock.destinations.protocol import Stopped, TableChanges
from penstock.model import Lsn


@dataclass(frozen=True, slots=True)
class ToWrite:
    """A table that is locked, with changes that it lacks."""

    known: Known | None
    stands: Lsn
    """Where its stream stands."""


def begin(ledger: Ledger, changes: TableChanges, start: Lsn, end: Lsn) -> ToWrite | Stopped | None:
    """Lock the table for its changes of `[start, end)`. None, or why it stopped, if an earlier attempt has
    written them, or could not. Raises if something before `start` is missing."""
    id = changes.delivery.id
    ledger.lock_table(id)
    # In this order: another attempt's `move_on` may commit in between. It moves the stream and lets its
    # tables stand where that does; a table that is seen so must not be taken to stand where it stood.
    known = ledger.known(id)
    stands = ledger.position()
    table = known.get(id)
    if stands is not None and stands >= end:
        return next(iter(stopped_before(known, [changes])), None)
    if table is not None and table.position is not None and table.position >= end:
        return None
    refuse_if_behind(stands, start)
    assert stands is not None
    return ToWrite(table, stands)


def move_on(ledger: Ledger, batch: ChangeBatch) -> None:
    """Record that the stream stands at the batch's end. Call when every table of the batch was written, or is
    recorded as stopped."""
    stands = ledger.lock()
    refuse_if_behind(stands, batch.start)
    if stands is None or stands <= batch.end:
        ledger.move(batch.end, batch.complete_through)

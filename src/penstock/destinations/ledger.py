"""How far a destination came: what it records of a stream and of its tables, with its data.

A stream's position is written in the transaction that writes its data, so the two never disagree, whatever is
killed when. The transaction begins by locking the stream: of two that would write the same batch at the same
time (a retried task whose first attempt still lives) the second waits, and then finds nothing to do.

A table stands where its stream stands (position None), unless it was stopped: then it has a position, and the
reason, of its own.

What is written next begins where the last ended. If what is recorded is behind that, the destination is not
what it was: nothing is written to it then (`refuse_if_behind`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from penstock.destinations.protocol import Delivery, Recorded, Stopped, TableChanges
from penstock.model import Lsn, TableId
from penstock.model.errors import DestinationWentBack, PenstockError


@dataclass(frozen=True, slots=True)
class StreamId:
    """Which stream arrives: the name under which the destination remembers it."""

    pipeline: str
    destination: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pipeline, self.destination, self.source


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded of a table."""

    copy: str
    version: int
    position: Lsn | None
    error: PenstockError | None
    made: bool
    """By us: then it is ours to alter."""


class Ledger(Protocol):
    """The records of one stream, within one transaction of the destination's."""

    def lock(self) -> Lsn | None:
        """Return where the stream stands. Nobody else moves it before this transaction has ended."""

    def position(self) -> Lsn | None:
        """Return where the stream stands."""

    def move(self, to: Lsn, complete_through: datetime | None) -> None:
        """Record that the stream stands further on, and every table that came as far without an error."""

    def known(self, only: TableId | None = None) -> dict[TableId, Known]:
        """Return what is recorded of the tables; `only` one where no other is asked for: there may be
        thousands."""

    def names(self) -> dict[TableId, str]:
        """Return what the tables are called at the source."""

    def record(self, delivery: Delivery, table: Known) -> None:
        """Record what became of a table. One that was stopped is complete as far as the stream was."""

    def lock_table(self, table: TableId) -> None:
        """Let nobody else write the table for this stream before this transaction has ended."""

    def hold(self, table: TableId, position: Lsn, why: PenstockError) -> None:
        """Record that the table stands at this position from now on; one that stopped before stays where it
        is."""

    def forget(self, table: TableId) -> None:
        """Remove what is recorded of a table."""

    def erase(self) -> None:
        """Remove what is recorded of the stream and its tables."""


def begin(ledger: Ledger, position: Lsn) -> None:
    """Have the stream go on from here, whatever was recorded."""
    ledger.lock()
    ledger.move(position, None)


def recorded(ledger: Ledger) -> Mapping[TableId, Recorded]:
    return {
        id: Recorded(table.copy, table.version, table.position, table.error)
        for id, table in ledger.known().items()
    }


def refuse_if_behind(stands: Lsn | None, start: Lsn) -> None:
    """Raise if what begins at `start` would leave a gap: all up to there had been recorded once."""
    if stands is None or stands < start:
        where = f"stands at {stands}" if stands is not None else "has no position"
        raise DestinationWentBack(f"the destination {where}, and had come to {start} before")


def is_done(known: Known | None, stands: Lsn | None, copy: str | None, version: int, position: Lsn) -> bool:
    """Whether an earlier attempt handed this copy over, or (None) caught the table up, and its answer was
    lost."""
    if known is None:
        return False
    if copy is not None:
        return known.copy == copy
    at = stood(known, stands)
    return known.error is None and known.version == version and at is not None and at >= position


def stood(known: Known | None, stands: Lsn | None) -> Lsn | None:
    """Return where a table stands; None if nothing is known of it."""
    if known is None:
        return None
    return known.position or stands


def stopped_before(known: Mapping[TableId, Known], changes: Sequence[TableChanges]) -> list[Stopped]:
    """Return the tables that an earlier attempt at these changes, whose answer was lost, could not write."""
    tables = [(one.delivery.id, known.get(one.delivery.id)) for one in changes]
    return [Stopped(id, table.error) for id, table in tables if table is not None and table.error is not None]

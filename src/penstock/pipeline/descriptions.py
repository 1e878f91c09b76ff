"""Descriptions of tables for a destination that keeps some (`Traits.wants_descriptions`).

The stream tells a table's columns when they change. It does not tell a default, or that a column may not be
NULL any more, nor anything of a table that nobody writes to: a look at the catalog does. Where that shows
something new, and what is to be followed of it was, the destination is told of the table: once at the start,
and once for every change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.destinations.protocol import Delivery, Run, TableChanges
from penstock.model import TableId
from penstock.model.errors import PenstockError, Scope
from penstock.state.store import TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream


class Descriptions:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: set[TableId] = set()

    def refresh(self, table: TableId) -> None:
        if self._stream.target.traits.wants_descriptions:
            self._waiting.add(table)

    def tell(self) -> None:
        """Tell the destination of the tables that are due. If it is away, they stay so, and so do those that
        have stopped."""
        stream = self._stream
        due = [table for table in stream.tables if table.key.table in self._waiting and table.phase.streams]
        if deliveries := [delivery for table in due if (delivery := self._delivery(table)) is not None]:
            stream.target.describe(stream.feed.name, deliveries)
        self._waiting.difference_update(table.key.table for table in due)

    def _delivery(self, state: TableState) -> Delivery | None:
        """Return the table as it is delivered; None where its rules do not fit: its next change says it."""
        stream = self._stream
        delivery = stream.tables.delivery(stream.changes.followed(state), state, state.detail)
        nothing = TableChanges((Run(delivery, ()),), stream.position)
        try:
            return stream.transformed(state, nothing, state).delivery
        except PenstockError as error:
            if error.scope is not Scope.TABLE:
                raise
            return None

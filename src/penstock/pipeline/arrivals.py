"""Tables of a stream that come and go, and those to which something happened that the stream does not show.

Each look at the published tables is compared with what is delivered. A table that is gone is let go when the
stream has passed the look that missed it: until then changes of it may come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.model import Lsn, TableId
from penstock.pipeline import unseen_changes
from penstock.pipeline.catalog_look import PublishedTables
from penstock.pipeline.schema_evolution import is_newer
from penstock.pipeline.table_facts import Facts
from penstock.state.store import TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream


class Arrivals:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._tables = stream.tables
        self._seen: PublishedTables | None = None
        self._leaving: dict[TableId, Lsn] = {}
        self._asked_for: set[TableId] = set()

    def look(self, published: PublishedTables) -> None:
        """Compare with the published tables, if they were looked at anew."""
        if published is self._seen:
            return
        self._seen = published
        states = {state.key.table: state for state in self._tables}
        self._add(published, published.tables.keys() - states.keys())
        for table in states.keys() - published.tables.keys():
            self._leaving.setdefault(table, published.lsn)
        for table in states.keys() & published.tables.keys():
            self._leaving.pop(table, None)
            if states[table].phase.streams and is_newer(published.tables[table], states[table].detail):
                self._compare(states[table], published.tables[table])

    def _compare(self, state: TableState, facts: Facts) -> None:
        """Copy a table anew to which something happened that the stream does not show."""
        if why := unseen_changes.unseen(state.detail, facts):
            self._stream.copy_anew(state, why)
        elif (detail := unseen_changes.remember(state.detail, facts)) != state.detail:
            self._tables.put(replace(state, detail=detail))

    def take_in(self, tables: Iterable[TableId]) -> None:
        """Add tables whose changes come before they were seen: they may have been published just now, or
        have left. Each is asked for once."""
        unknown = {table for table in tables if self._tables.get(table) is None}
        if not unknown - self._asked_for:
            return
        published = self._stream.feed.discover()
        self._add(published, unknown & published.tables.keys())
        self._asked_for |= unknown  # not before: where that fails, the batch comes again

    def _add(self, published: PublishedTables, tables: Iterable[TableId]) -> None:
        feed = self._stream.feed
        added = {table: published.tables[table].schema.name for table in tables}
        if added:
            self._stream.target.expect(feed.name, added)
        for table in added:
            self._tables.add(published.tables[table], feed.fresh.get(table))

    def let_go(self, reached: Lsn) -> None:
        """Remove the tables that left, once the stream has passed their end."""
        for state in list(self._tables) if self._leaving else ():
            left = self._leaving.get(state.key.table)
            if left is not None and left <= reached:
                self._stream.unfinished.do(
                    partial(self._stream.target.forget, self._stream.feed.name, state.key.table),
                    partial(self._tables.remove, state),
                )
                del self._leaving[state.key.table]

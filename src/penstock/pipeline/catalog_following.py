"""Following what the catalog says of a table and the stream does not: nobody has written to it since.

The catalog is of now, and the stream may be behind it: its word counts once the stream has passed it
(`schema_evolution.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.destinations.protocol import TableChanges
from penstock.model import Lsn, TableId
from penstock.pipeline.catalog_look import PublishedTables
from penstock.pipeline.schema_evolution import CopyAnew, is_due, is_outrun
from penstock.pipeline.table_facts import Facts, Mark
from penstock.state.store import TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream


class CatalogFollowing:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._agreed: dict[TableId, tuple[Mark | None, int]] = {}
        """Outlines of tables of which nothing was to be followed under a version: nothing is, once more."""

    def follow(self, state: TableState, reached: Lsn) -> bool:
        """Follow what there is to follow; return whether there was anything."""
        stream = self._stream
        facts = self._due(state, stream.feed.published, reached)
        if facts is not None and is_outrun(facts, stream.position):
            facts = self._due(state, stream.feed.discover(), reached)
        if facts is None or is_outrun(facts, stream.position):
            return False
        step = stream.changes.described(state, facts, reached)
        stream.descriptions.refresh(state.key.table)
        if isinstance(step, CopyAnew):
            stream.copy_anew(state, step.why)
        elif isinstance(step, TableState):
            stream.tables.put(step)
        elif step is None:
            self._agreed[state.key.table] = (facts.mark, state.version)
        else:
            self._change_schema(state, *step, reached)
        return step is not None

    def _due(self, state: TableState, published: PublishedTables, reached: Lsn) -> Facts | None:
        """Return what the catalog says of a table, if there may be something in it to follow now."""
        facts = published.tables.get(state.key.table)
        if facts is None or not is_due(facts, state.detail, reached):
            return None
        return None if self._agreed.get(state.key.table) == (facts.mark, state.version) else facts

    def _change_schema(
        self, state: TableState, changes: TableChanges, after: TableState, reached: Lsn
    ) -> None:
        stream = self._stream
        if after.target != state.target and stream.places.owner(after.target, state.key.table) is not None:
            if not stream.places.is_awaited(state):
                stream.copy_anew(state, "it has the name of another table, which does not make room")
            return
        start = state.position or stream.position
        stream.catch_up(state, replace(changes, start=start), after, reached)

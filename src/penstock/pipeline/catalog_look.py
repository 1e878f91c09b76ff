"""A look at the published tables of a source, every two seconds and whenever the stream shows something new.

It compares outlines (`postgres/outline.py`) and asks for a table's details only when its own has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.capture import launch
from penstock.config import SourceConfig
from penstock.config.tables import HISTORY
from penstock.model import Lsn, TableId
from penstock.pipeline import table_facts
from penstock.pipeline.table_facts import Facts, Mark, marks, one_moment, wal_position
from penstock.postgres import catalog
from penstock.postgres.connection import Connection
from penstock.postgres.selection import Selection, select


@dataclass(frozen=True, slots=True)
class Found:
    """The published tables, as of one moment."""

    tables: dict[TableId, Facts]
    lsn: Lsn
    history: TableId | None = None
    """The table in which schema changes come, if they are recorded."""


class Look:
    def __init__(self, source: SourceConfig, tell: Callable[[list[str]], None]) -> None:
        self._source = source
        self._tell = tell
        self._known: dict[TableId, Facts] = {}

    def take(self, connection: Connection) -> Found:
        """Where the publication is ours it is brought in step first, and then looked at once more."""
        begun = wal_position(connection)
        with one_moment(connection):
            selection = select(connection, self._source)
            in_step = selection.is_published(self._source)
            found = self._described(connection, selection) if in_step else {}
        if in_step:
            self._tell(selection.left_out() if self._source.replication.create_publication else [])
        else:
            self._tell(launch.adjust(connection, self._source, selection))
            with one_moment(connection):
                selection = select(connection, self._source)
                found = self._described(connection, selection)
        lsn = wal_position(connection)  # after all that was read
        measured = self._measured(connection, found)
        self._known = {
            id: replace(table, begun=begun, lsn=min(table.lsn, lsn) if self._is_same(table) else lsn)
            for id, table in measured.items()
        }
        ours = self._source.tables.is_ours  # a publication of all tables has them, too
        return Found(
            {id: table for id, table in self._known.items() if not ours(table.schema.name)},
            lsn,
            next((id for id, t in found.items() if selection.recorded and t.schema.name == HISTORY), None),
        )

    def _described(self, connection: Connection, selection: Selection) -> dict[TableId, Facts]:
        """What is known already where nothing has changed, else what the catalog says now."""
        current = marks(selection.seen, selection.shapes)
        changed = {id: mark for id, mark in current.items() if not self._is_known(id, mark)}
        described = table_facts.describe(connection, self._source.publication_name, changed)
        return {id: self._known[id] for id in current.keys() - changed.keys()} | described

    def _is_known(self, table: TableId, mark: Mark) -> bool:
        before = self._known.get(table)
        return before is not None and before.mark == mark

    def _is_same(self, table: Facts) -> bool:
        """Whether it is just as it was at the last look."""
        return table is self._known.get(table.id)

    def _measured(self, connection: Connection, found: dict[TableId, Facts]) -> dict[TableId, Facts]:
        """With the sizes of tables that are new, and with the partitions that begin empty."""
        new = found.keys() - self._known.keys()
        size = catalog.sizes(connection, new)
        come = {
            id: {int(leaf) for leaf, rows in table.leaves.items() if self._leaves(id).get(leaf) != rows}
            for id, table in found.items()
            if not self._is_same(table)
        }
        empty = catalog.empty(connection, {leaf for leaves in come.values() for leaf in leaves})
        return {
            id: replace(
                table,
                bytes=size[id] if id in size else self._known[id].bytes if id in self._known else 0,
                streamed=self._streamed(table) | {str(leaf) for leaf in come[id] & empty},
            )
            if id in come
            else table
            for id, table in found.items()
        }

    def _leaves(self, table: TableId) -> dict[str, str]:
        before = self._known.get(table)
        return dict(before.leaves) if before else {}

    def _streamed(self, table: Facts) -> frozenset[str]:
        """The partitions of which this was known, and that are the same."""
        before = self._known.get(table.id)
        if before is None:
            return frozenset()
        return frozenset(
            leaf for leaf in before.streamed if before.leaves.get(leaf) == table.leaves.get(leaf)
        )

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
from penstock.postgres.refusals import Refusals
from penstock.postgres.selection import Selection, select


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """The published tables, as of one moment."""

    tables: dict[TableId, Facts]
    lsn: Lsn
    history: TableId | None = None
    """The table in which schema changes come, if they are recorded."""


class Look:
    def __init__(self, source: SourceConfig, tell: Callable[[list[str]], None]) -> None:
        self._source = source
        self._tell = tell
        self._tables: dict[TableId, Facts] = {}
        self._refusals = Refusals()

    def take(self, connection: Connection) -> PublishedTables:
        """Return the published tables as they are now; where the publication is ours, bring it in step
        first."""
        begun = wal_position(connection)
        with one_moment(connection):
            selection = select(connection, self._source)
            self._refusals.see(selection.looks())
            refused = self._refusals.standing()
            in_step = selection.is_published(self._source, refused.keys())
            tables = self._described(connection, selection) if in_step else {}
        if in_step:
            ours = self._source.replication.create_publication
            self._tell([*refused.values(), *selection.left_out()] if ours else [])
        else:
            self._tell(launch.adjust(connection, self._source, selection, self._refusals))
            with one_moment(connection):
                selection = select(connection, self._source)
                tables = self._described(connection, selection)
        lsn = wal_position(connection)  # after all that was read
        measured = self._measured(connection, tables)
        self._tables = {
            id: replace(table, begun=begun, lsn=min(table.lsn, lsn) if self._is_same(table) else lsn)
            for id, table in measured.items()
        }
        is_ours = self._source.tables.is_ours  # a publication of all tables has them, too
        return PublishedTables(
            {id: table for id, table in self._tables.items() if not is_ours(table.schema.name)},
            lsn,
            next((id for id, t in tables.items() if selection.recorded and t.schema.name == HISTORY), None),
        )

    def _described(self, connection: Connection, selection: Selection) -> dict[TableId, Facts]:
        """Return the tables: as known already where nothing has changed, else as the catalog has them now."""
        current = marks(selection.seen, selection.shapes)
        changed = {id: mark for id, mark in current.items() if not self._is_known(id, mark)}
        described = table_facts.describe(connection, self._source.publication_name, changed)
        return {id: self._tables[id] for id in current.keys() - changed.keys()} | described

    def _is_known(self, table: TableId, mark: Mark) -> bool:
        before = self._tables.get(table)
        return before is not None and before.mark == mark

    def _is_same(self, table: Facts) -> bool:
        """Whether it is just as it was at the last look."""
        return table is self._tables.get(table.id)

    def _measured(self, connection: Connection, tables: dict[TableId, Facts]) -> dict[TableId, Facts]:
        """Return the tables with the sizes of new ones, and with the partitions that begin empty."""
        new = tables.keys() - self._tables.keys()
        size = catalog.sizes(connection, new)
        come = {
            id: {int(leaf) for leaf, rows in table.leaves.items() if self._leaves(id).get(leaf) != rows}
            for id, table in tables.items()
            if not self._is_same(table)
        }
        empty = catalog.empty(connection, {leaf for leaves in come.values() for leaf in leaves})
        return {
            id: replace(
                table,
                bytes=size[id] if id in size else self._tables[id].bytes if id in self._tables else 0,
                streamed=self._streamed(table) | {str(leaf) for leaf in come[id] & empty},
            )
            if id in come
            else table
            for id, table in tables.items()
        }

    def _leaves(self, table: TableId) -> dict[str, str]:
        before = self._tables.get(table)
        return dict(before.leaves) if before else {}

    def _streamed(self, table: Facts) -> frozenset[str]:
        """Return the partitions of which this was known, and that are the same."""
        before = self._tables.get(table.id)
        if before is None:
            return frozenset()
        return frozenset(
            leaf for leaf in before.streamed if before.leaves.get(leaf) == table.leaves.get(leaf)
        )

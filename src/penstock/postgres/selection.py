"""Which tables a source's publication is to have, and why others are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config import SourceConfig
from penstock.config.tables import HISTORY
from penstock.model import TableId, TableName
from penstock.postgres import ddl, outline
from penstock.postgres.connection import Connection
from penstock.postgres.outline import Outlines, TableShape
from penstock.postgres.publication import REMEDY


@dataclass(frozen=True, slots=True)
class Selection:
    """What the configuration chooses, at one moment."""

    seen: Outlines
    shapes: Mapping[TableId, TableShape]
    """Of what is captured or published, and of its leaves."""
    fit: frozenset[TableName]
    unfit: Mapping[TableName, str]
    """Tables that cannot be followed, with the reason and the remedy."""
    recorded: bool
    """Whether the source records schema changes, and they are wanted."""

    @property
    def wanted(self) -> frozenset[TableName]:
        return self.fit | {HISTORY} if self.recorded else self.fit

    def is_published(self, source: SourceConfig) -> bool:
        """Whether there is nothing to do to the publication, or nothing that we may do."""
        publication = self.seen.publication
        if publication is None:
            return False
        if not source.replication.create_publication:
            return True
        if not publication.ours or publication.all_tables:
            return publication.trusted
        return self.wanted == {t.name for t in self.seen.tables.values() if t.listed is not None}

    def left_out(self) -> list[str]:
        return [f"{name} is left out: {why}" for name, why in self.unfit.items()]


def select(connection: Connection, source: SourceConfig) -> Selection:
    seen = outline.look(connection, source.publication_name)
    captured = seen.captured(source.tables)
    published = [seen.tables[id] for id in seen.published()]
    shapes = outline.shapes(
        connection,
        {part.id for table in (*captured, *published) for part in (table, *seen.leaves(table))},
    )
    reasons = {table.name: outline.unfit(seen, table, shapes, source.tables) for table in captured}
    return Selection(
        seen,
        shapes,
        fit=frozenset(name for name, why in reasons.items() if why is None),
        unfit={name: why for name, why in reasons.items() if why is not None},
        recorded=source.ddl_capture != "off" and ddl.is_installed(connection),
    )


def left_out(connection: Connection, source: SourceConfig) -> dict[TableName, str]:
    """Return the chosen tables that are not published, with the reason, once there is a publication. Where
    that is not ours to alter, a table in it that is unfit is told of as well: its updates fail."""
    selection = select(connection, source)
    if selection.seen.publication is None:
        return {}
    published = {selection.seen.tables[id].name for id in selection.seen.published()}
    missing = {
        table.id: table.name
        for table in selection.seen.captured(source.tables)
        if table.name in selection.fit - published
    }
    strangers: dict[int, str] = dict(connection.execute(_STRANGERS, (list(missing),)).fetchall())
    reasons = {
        name: f"it belongs to {strangers[id]}. {REMEDY}"
        if id in strangers and source.replication.create_publication
        else "it is not in the publication (yet)"
        for id, name in missing.items()
    }
    return dict(sorted({**selection.unfit, **reasons}.items()))


_STRANGERS = """
    select c.oid::int8, pg_get_userbyid(c.relowner)
    from pg_class c
    where c.oid = any (%s) and not pg_has_role(c.relowner, 'usage')
"""

"""Which tables a source's publication is to have, and why others are left out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Set
from dataclasses import dataclass

from penstock.config import SourceConfig
from penstock.config.tables import HISTORY
from penstock.model import TableId, TableName
from penstock.postgres import ddl, obstacle, outline
from penstock.postgres.connection import Connection
from penstock.postgres.outline import Outlines, TableShape
from penstock.postgres.publication import REMEDY
from penstock.postgres.refusals import Refusable


@dataclass(frozen=True, slots=True)
class Selection:
    """What the configuration chooses, at one moment."""

    seen: Outlines
    shapes: Mapping[TableId, TableShape]
    """Of what is captured or published, and of its leaves."""
    fit: frozenset[TableName]
    unfit: Mapping[TableName, str]
    """Tables that cannot be followed, or that we may not publish, with the reason and the remedy."""
    recorded: bool
    """Whether the source records schema changes, and they are wanted."""

    @property
    def wanted(self) -> frozenset[TableName]:
        return self.fit | {HISTORY} if self.recorded and HISTORY not in self.unfit else self.fit

    def is_published(self, source: SourceConfig, refused: Collection[Refusable] = ()) -> bool:
        """Whether there is nothing to do to the publication, or nothing that we may do, or that the server
        would do: it has just refused."""
        publication = self.seen.publication
        if publication is None:
            return False
        if not source.replication.create_publication:
            return True
        if not publication.is_ours_to_alter:
            return publication.trusted
        listed = {t.name for t in self.seen.tables.values() if t.listed is not None}
        whole = publication.is_whole(self.seen.version) or publication.name in refused
        return whole and not (self.wanted ^ listed).difference(refused)

    def looks(self) -> dict[Refusable, Hashable]:
        """Return what stands for how the publication and each table look."""
        looks: dict[Refusable, Hashable] = {
            table.name: (table, self.shapes.get(table.id)) for table in self.seen.tables.values()
        }
        if self.seen.publication is not None:
            looks[self.seen.publication.name] = self.seen.publication
        return looks

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
    reasons = {table.name: obstacle.unfit(seen, table, shapes, source.tables) for table in captured}
    recorded = source.ddl_capture != "off" and ddl.is_installed(connection)
    unfit = {name: why for name, why in reasons.items() if why is not None}
    fit = reasons.keys() - unfit.keys()
    unfit |= _strangers(connection, source, seen, fit | {HISTORY} if recorded else fit)
    return Selection(seen, shapes, frozenset(fit - unfit.keys()), unfit, recorded)


def _strangers(
    connection: Connection, source: SourceConfig, seen: Outlines, wanted: Set[TableName]
) -> dict[TableName, str]:
    """Return those of the wanted tables that are not published yet and that we may not publish: the server
    locks a table before it looks whose it is."""
    alterable = seen.publication is None or seen.publication.is_ours_to_alter
    if not source.replication.create_publication or not alterable:
        return {}
    missing = {t.id: t.name for t in seen.tables.values() if t.listed is None and t.name in wanted}
    rows = connection.execute(_STRANGERS, (list(missing),)).fetchall() if missing else []
    return {missing[TableId(id)]: f"it belongs to {owner}. {REMEDY}" for id, owner in rows}


def left_out(connection: Connection, source: SourceConfig) -> dict[TableName, str]:
    """Return the chosen tables that are not published, with the reason, once there is a publication. Where
    that is not ours to alter, a table in it that is unfit is told of as well: its updates fail, or it cannot
    be followed."""
    selection = select(connection, source)
    seen = selection.seen
    if seen.publication is None:
        return {}
    published = [seen.tables[id] for id in seen.published()]
    missing = selection.fit - {table.name for table in published}
    gaps = {table.name: obstacle.gap(seen, table, selection.shapes) for table in published}
    reasons = {
        **{name: f"{gap[0]}. {gap[1]}" for name, gap in gaps.items() if gap is not None},
        **dict.fromkeys(missing, "it is not in the publication (yet)"),
        **selection.unfit,
    }
    return {name: why for name, why in sorted(reasons.items()) if not source.tables.is_ours(name)}


_STRANGERS = """
    select c.oid::int8, pg_get_userbyid(c.relowner)
    from pg_class c
    where c.oid = any (%s) and not pg_has_role(c.relowner, 'usage')
"""

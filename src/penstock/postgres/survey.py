"""What tables a server has, before anything is configured: their sizes, which cannot be followed, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config import TablesConfig
from penstock.model import TableId, TableName
from penstock.postgres import catalog, obstacle, outline
from penstock.postgres.catalog import Table, TableKind
from penstock.postgres.connection import Connection
from penstock.postgres.outline import Outlines, TableShape

NO_PUBLICATION = ""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    name: TableName
    bytes: int
    obstacle: str | None
    """Why it cannot be followed as it is."""
    remedy: str = ""


def survey(connection: Connection) -> list[SurveyedTable]:
    """Return every table but the system's and our own, by name; a partition comes with the whole table."""
    tables = catalog.matching(connection, TablesConfig())
    names = {table.name for table in tables}
    whole = [table for table in tables if names.isdisjoint(table.ancestors)]
    seen = outline.look(connection, NO_PUBLICATION)
    parts = {table.id: seen.leaves(seen.tables[table.id]) for table in whole if table.id in seen.tables}
    shapes = outline.shapes(connection, {*parts, *(leaf.id for leaves in parts.values() for leaf in leaves)})
    return [
        SurveyedTable(table.name, table.bytes, *_obstacle(table, seen, shapes))
        for table in whole
        if table.id in shapes
    ]


def _obstacle(table: Table, seen: Outlines, shapes: Mapping[TableId, TableShape]) -> tuple[str | None, str]:
    if table.kind is TableKind.FOREIGN:
        return "it is a foreign table, whose changes are not in the WAL", "Capture it where it is"
    if table.unlogged:
        return "it is unlogged: its changes are not in the WAL", "Run `alter table … set logged`"
    if found := obstacle.obstacle(seen, seen.tables[table.id], shapes):
        return found
    if table.row_security_applies:
        return (
            "row level security hides rows of it from this role",
            "Give the role BYPASSRLS, or capture with a role that the policies do not concern",
        )
    return None, ""

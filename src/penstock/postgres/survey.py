"""What tables a server has, before anything is configured: their sizes, which cannot be followed, and why."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import TablesConfig
from penstock.model import TableName
from penstock.postgres import catalog
from penstock.postgres.catalog import Table, TableKind
from penstock.postgres.connection import Connection
from penstock.postgres.identity import lack


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
    whole = (table for table in tables if names.isdisjoint(table.ancestors))
    return [SurveyedTable(table.name, table.bytes, *_obstacle(table)) for table in whole]


def _obstacle(table: Table) -> tuple[str | None, str]:
    if table.kind is TableKind.FOREIGN:
        return "it is a foreign table, whose changes are not in the WAL", "Capture it where it is"
    if table.unlogged:
        return "it is unlogged: its changes are not in the WAL", "Run `alter table … set logged`"
    if not table.identified:
        return lack(table.identity, deferrable=table.deferrable)
    if table.row_security_applies:
        return (
            "row level security hides rows of it from this role",
            "Give the role BYPASSRLS, or capture with a role that the policies do not concern",
        )
    return None, ""

"""A table at the destination: where the rows of one delivery go, and how statements speak of it.

Where several sources meet in one table, a column in front says which one a row is from. It is part of the
key, and each source sees and touches its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from psycopg import sql

from penstock.destinations.protocol import Delivery, Kind
from penstock.model import TableName

START, END, DELETED = "kvsz_start", "kvsz_end", "kvsz_deleted"
"""What a history table has besides: from when, until when, and whether a deletion ended it."""

FIRST, OPEN = "1900-01-01 00:00:00+00", "9999-01-01 00:00:00+00"


@dataclass(frozen=True, slots=True)
class TargetTable:
    delivery: Delivery
    source_column: str | None = None
    """None: no other source comes here."""
    table: TableName | None = None
    """If the rows go elsewhere than to the target: where a copy is set aside."""
    ours: bool = True
    """Whether we made the table: then it follows the source's in everything."""
    equalities: tuple[tuple[str, str, str], ...] = ()
    """Key columns of a type that PostgreSQL does not bring, with the schema and name of its equality."""
    referenced: bool = False
    """Whether foreign keys are at work that reference it (`trust.Guarded`)."""
    cascades: bool = False
    """Whether these delete or change other rows with its own."""
    computed: frozenset[str] = frozenset()
    """Columns of a user's table that it computes by itself (`generated`): they are not written."""
    fixed: frozenset[str] = frozenset()
    """Columns of it that can be given, but not changed (`generated always as identity`)."""
    trusted: tuple[str, ...] = ()
    """Owners of tables and types, besides ourselves and those above us, whose they may be."""
    patient: bool = True
    """Whether who keeps us from it is waited for, for longer than a moment."""
    hasty: bool = field(default=False, compare=False)
    """Whether what a foreign key refuses is said at once: it may be taken when other tables were written."""

    @property
    def name(self) -> TableName:
        return self.table or self.delivery.target

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.name.schema, self.name.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the source delivers."""
        return self.delivery.table.column_names

    @property
    def written(self) -> tuple[str, ...]:
        """Return the delivered columns that are written."""
        return tuple(name for name in self.columns if name not in self.computed)

    @property
    def key(self) -> tuple[str, ...]:
        return self.delivery.key

    @property
    def history(self) -> bool:
        return self.delivery.kind is Kind.HISTORY

    @property
    def append(self) -> bool:
        return self.delivery.kind is Kind.APPEND

    def at(self, delivery: Delivery) -> TargetTable:
        return replace(self, delivery=delivery)

    def equals(self, column: str) -> sql.Composable:
        """Return the operator for equality of a key column: nothing but PostgreSQL's own is found by its
        name alone."""
        own = next((operator for name, *operator in self.equalities if name == column), None)
        return (
            sql.SQL("operator({}.{})").format(sql.Identifier(own[0]), sql.SQL(own[1]))
            if own
            else sql.SQL("=")
        )

    def own(self, alias: str) -> sql.Composable:
        """Return the condition that a row of the table is this source's."""
        if self.source_column is None:
            return sql.SQL("true")
        return sql.SQL("{}.{} = {}").format(
            sql.Identifier(alias), sql.Identifier(self.source_column), sql.Literal(self.delivery.source)
        )

    def insert(self) -> tuple[list[sql.Composable], list[sql.Composable]]:
        """Return what every inserted row has besides the delivered columns: columns, and their values."""
        if self.source_column is None:
            return [], []
        return [sql.Identifier(self.source_column)], [sql.Literal(self.delivery.source)]


def comma(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def both(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(" and ").join(parts)


def names(columns: Iterable[str]) -> sql.Composed:
    return comma(sql.Identifier(column) for column in columns)

"""Which table a typed stream follows, and what happens when it changes.

A stream declares its columns when it starts: those of the newest version of the table's schema. Rows of the
versions known by then are fitted to them by name. Rows of a version that comes later fit if columns and types
are the same; otherwise the query stops before the batch that has them, and, started again, goes on
from its checkpoint with the new columns. Nothing is dropped or made NULL because a schema was old.

A table is followed under its name: dropped and made again, it is the same stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.changes.arrow_types import arrow_type
from penstock.changes.slices import Schemas, Slice
from penstock.model import Column, ColumnType, TableId, TableName, TableSchema
from penstock.model.errors import ConfigError, SchemaChanged, UnknownTable
from penstock.spark.cdc.shapes import SYSTEM_COLUMNS, OneTable

_TEXT = ColumnType(25, "text")


@dataclass(frozen=True, slots=True)
class ChosenTable:
    """A table as it was when the stream was loaded."""

    name: TableName
    id: TableId
    columns: tuple[Column, ...]
    text_columns: frozenset[str]
    known_versions: frozenset[tuple[TableId, int]]
    """The versions known then."""

    def shape(self, with_before: bool) -> OneTable:
        return OneTable(self.columns, with_before)

    def slices_of_it(self, parts: Iterable[Slice], shape: OneTable) -> Iterator[Slice]:
        """Yield the slices that hold rows of this table; raise for those that do not fit."""
        for part in parts:
            table = part.table
            if table is None:
                continue
            new = (table.id, table.version) not in self.known_versions
            if table.name == self.name:
                if new:
                    self._refuse_if_changed(table)
                else:
                    shape.refuse_types_of(table)
                yield part
            elif new and table.id == self.id:
                raise SchemaChanged(
                    f"the table is called {table.name} now",
                    table=self.name,
                    remedy="Follow it by its new name, from the same position",
                )

    def _refuse_if_changed(self, table: TableSchema) -> None:
        declared = {column.name: arrow_type(column.type) for column in self.columns}
        current = {
            column.name: pa.string() if column.name in self.text_columns else arrow_type(column.type)
            for column in table.columns
        }
        if current != declared:
            raise SchemaChanged(_difference(declared, current), table=self.name)


def _difference(declared: dict[str, pa.DataType], current: dict[str, pa.DataType]) -> str:
    added, dropped = current.keys() - declared.keys(), declared.keys() - current.keys()
    changed = {name for name in current.keys() & declared.keys() if current[name] != declared[name]}
    differences = [
        f"{what} {', '.join(sorted(names))}"
        for what, names in (("added", added), ("dropped", dropped), ("of another type", changed))
        if names
    ]
    return f"the table's columns changed while the query ran: {'; '.join(differences)}"


def choose_table(
    name: TableName, schemas: Schemas, text_columns: frozenset[str], described: TableSchema | None = None
) -> ChosenTable:
    """Return the table of this name, in the newest version that the spool has, or else as `described`."""
    versions = [schema for schema in schemas.values() if schema.name == name]
    versions += [] if described is None else [described]
    if not versions:
        captured = sorted({str(schema.name) for schema in schemas.values()})
        raise UnknownTable(
            "no change of this table has been captured yet; there are changes of "
            + (", ".join(captured) or "none"),
            table=name,
        )
    newest = max(versions, key=lambda schema: (schema.id, schema.version))
    spooled = frozenset((schema.id, schema.version) for schema in schemas.values())
    return ChosenTable(name, newest.id, _columns(newest, text_columns), text_columns, spooled)


def _columns(table: TableSchema, text_columns: frozenset[str]) -> tuple[Column, ...]:
    missing = text_columns - set(table.column_names)
    if missing:
        raise ConfigError(f"`textColumns` names {', '.join(sorted(missing))}", table=table.name)
    taken = {"_before", *(field.name for field in SYSTEM_COLUMNS)} & set(table.column_names)
    if taken:
        raise ConfigError(
            f"the table has columns called {', '.join(sorted(taken))}, as the stream has itself",
            table=table.name,
            remedy="Read it without the option `table`",
        )
    return tuple(
        replace(column, type=_TEXT) if column.name in text_columns else column for column in table.columns
    )

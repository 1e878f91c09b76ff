"""What a table looks like, as the replication stream tells it.

A `TableSchema` has a version: each time PostgreSQL describes a table differently, the version grows, and
every change in the spool names the version it was written under. Type oids are resolved to `ColumnType`s
when a version is first seen, so that a reader of the spool never needs the source's catalog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NewType

TableId = NewType("TableId", int)
"""The oid of a table: it survives a rename, a name does not."""

NO_TABLE = TableId(0)
"""What a logical message carries in place of a table."""


FIRST_USER_OID = 16384
"""What has a smaller oid comes with PostgreSQL."""

QUOTED = r'"(?:[^"]|"")+"'
"""A part of a name that is taken literally."""
_NAME = re.compile(rf'(?:({QUOTED}|[^".][^.]*)\.)?(.*)', re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """As text `schema.table`. A part that holds a dot or a quote is in double quotes, so that no two names
    have the same text."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{_written(self.schema)}.{_written(self.name)}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a table's name; without a schema it is a table of `public`."""
        match = _NAME.fullmatch(text)
        assert match is not None
        return cls(literal(match[1] or "public"), literal(match[2]))


def _written(part: str) -> str:
    return quoted(part) if "." in part or '"' in part else part


def quoted(part: str) -> str:
    """Return a part of a name, quoted to be taken literally whatever it holds."""
    doubled = part.replace('"', '""')
    return f'"{doubled}"'


def literal(part: str) -> str:
    """Return what a part of a name means, in quotes or not."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


class TypeKind(StrEnum):
    """What sort of type it is: `pg_type.typtype`, with arrays told apart and the unknown admitted."""

    BASE = "base"
    ARRAY = "array"
    COMPOSITE = "composite"
    DOMAIN = "domain"
    ENUM = "enum"
    RANGE = "range"
    MULTIRANGE = "multirange"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type with its modifier. `inner` is a domain's base type or an array's element type."""

    oid: int
    name: str
    """As `pg_type.typname` has it, without its modifier: `numeric`, `int4`, `_text`."""
    modifier: int = -1
    kind: TypeKind = TypeKind.BASE
    inner: ColumnType | None = None

    @property
    def base(self) -> ColumnType:
        """Return the type under all domains."""
        base = self
        while base.kind is TypeKind.DOMAIN and base.inner is not None:
            base = base.inner
        return base

    @property
    def unnamed(self) -> ColumnType:
        """Return the type without its name, which may be another one by now: it is the same by its oid."""
        return replace(self, name="", inner=self.inner.unnamed if self.inner else None)

    def to_dict(self) -> dict[str, Any]:
        inner = self.inner.to_dict() if self.inner else None
        return {
            "oid": self.oid,
            "name": self.name,
            "modifier": self.modifier,
            "kind": self.kind.value,
            "inner": inner,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ColumnType:
        inner = cls.from_dict(document["inner"]) if document["inner"] else None
        return cls(document["oid"], document["name"], document["modifier"], TypeKind(document["kind"]), inner)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    key: bool = False
    """Whether it is part of the replica identity: what an old row is found by."""


class ReplicaIdentity(StrEnum):
    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class TableSchema:
    id: TableId
    version: int
    name: TableName
    identity: ReplicaIdentity
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def layout(self) -> list[tuple[str, ColumnType]]:
        """Return the columns' names and types, whatever these are called."""
        return [(column.name, column.type.unnamed) for column in self.columns]

    @property
    def has_unknown_types(self) -> bool:
        """Whether a type was not in the catalog when it was looked for."""
        return any(column.type.kind is TypeKind.UNKNOWN for column in self.columns)

    @property
    def key(self) -> tuple[int, ...]:
        """Return the places of the columns that identify a row. Under identity full every column does."""
        return tuple(place for place, column in enumerate(self.columns) if column.key)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "version": self.version,
            "schema": self.name.schema,
            "name": self.name.name,
            "identity": self.identity.value,
            "columns": [{"name": c.name, "type": c.type.to_dict(), "key": c.key} for c in self.columns],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TableSchema:
        return cls(
            id=TableId(document["id"]),
            version=document["version"],
            name=TableName(document["schema"], document["name"]),
            identity=ReplicaIdentity(document["identity"]),
            columns=tuple(
                Column(c["name"], ColumnType.from_dict(c["type"]), c["key"]) for c in document["columns"]
            ),
        )

"""`schema.yml`: what a full copy is a copy of, as the catalog says under the copy's own snapshot."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import yaml

from penstock.destinations.protocol import Delivery
from penstock.model import Lsn
from penstock.postgres.catalog import Constraint, Index, Table, TableColumn

_MODIFIERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_TEXTS = re.compile(r"^(character|bit)\b")


def document(table: Table, delivery: Delivery, rows: int, lsn: Lsn) -> bytes:
    """Of the columns that are delivered; one that a transform made has no description but its type."""
    known = {column.name: column for column in table.columns}
    names = delivery.table.column_names
    described = {
        "table": {"schema": table.name.schema, "name": table.name.name, "row_count": rows},
        "columns": [
            _column(known[name], table) if name in known else {"name": name, "type": "text"} for name in names
        ],
        "indexes": [_index(index) for index in table.indexes if _has(names, index.columns)],
        "constraints": [
            {"name": one.name, "type": kind, "columns": list(one.columns), **_more(kind, one)}
            for kind, found in _constraints(table)
            for one in found
            if _has(names, one.columns)
        ],
        "metadata": {
            "exported_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "snapshot_lsn": str(lsn),
            "key": list(delivery.key),
        },
    }
    text: str = yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def _has(names: tuple[str, ...], columns: tuple[str, ...]) -> bool:
    return set(columns) <= set(names)


def _column(column: TableColumn, table: Table) -> dict[str, Any]:
    key = table.primary_key.columns if table.primary_key else ()
    unique = any(one.columns == (column.name,) for one in table.unique)
    said: dict[str, Any] = {"name": column.name, "type": column.type}
    base = column.domain_of or column.type
    if found := _MODIFIERS.search(base):
        if _TEXTS.match(base):
            said["length"] = int(found[1])
        else:
            said["precision"] = int(found[1])
            if found[2] is not None:
                said["scale"] = int(found[2])
    said["nullable"] = column.nullable
    optional = {
        "primary_key": column.name in key,
        "unique": unique,
        "default": column.default,
        "identity": column.identity,
        "generated": column.generated,
        "domain_of": column.domain_of,
        "values": list(column.labels),
        "collation": column.collation,
    }
    return said | {name: value for name, value in optional.items() if value}


def _index(index: Index) -> dict[str, Any]:
    return {
        "name": index.name,
        "columns": list(index.columns),
        "unique": index.unique,
        "definition": index.definition,
    }


def _constraints(table: Table) -> list[tuple[str, tuple[Constraint, ...]]]:
    return [
        ("primary_key", (table.primary_key,) if table.primary_key else ()),
        ("unique", table.unique),
        ("foreign_key", table.foreign_keys),
        ("check", table.checks),
    ]


def _more(kind: str, constraint: Constraint) -> dict[str, Any]:
    if kind == "foreign_key":
        return {"references": str(constraint.references), "referenced_columns": list(constraint.referenced)}
    return {"definition": constraint.definition} if kind == "check" else {}

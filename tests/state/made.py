"""States and schemas for tests of the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.model import Column, ColumnType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.errors import to_dict
from penstock.model.phases import Phase
from penstock.state import TableKey, TableState

KEY = TableKey("eu", "warehouse", TableId(16385))
THEN = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)


def state(phase: Phase = Phase.INIT, key: TableKey = KEY, **more: Any) -> TableState:
    name = TableName("public", f"table {key.table} \"ü'")
    return replace(TableState(key, name, TableName("app", name.name), phase, THEN), **more)


def schema(table: TableId = KEY.table, version: int = 1, *columns: str) -> TableSchema:
    text = ColumnType(25, "text")
    named = tuple(Column(name, text, key=name == "id") for name in ("id", *columns))
    return TableSchema(table, version, TableName("public", "ünïcode"), ReplicaIdentity.DEFAULT, named)


def plain(found: TableState | None) -> dict[str, Any] | None:
    """To compare by: errors are equal only to themselves."""
    if found is None:
        return None
    fields = {name: getattr(found, name) for name in TableState.__slots__ if name != "error"}
    return fields | {"error": to_dict(found.error) if found.error else None, "detail": dict(found.detail)}

"""A spool made by hand: schemas and changes as one writes them down, no server needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.model import (
    NO_TABLE,
    Column,
    ColumnType,
    Lsn,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    TypeKind,
)
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.spool.segment import SCHEMA, BeforeKind, Op
from penstock.spool.writer import SpoolWriter

IDENTITY = Identity("7000000000000000001", "shop", "penstock_test")
START = Lsn(0x1000)
STEP = 0x100
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

OIDS = {"bool": 16, "int4": 23, "int8": 20, "text": 25, "numeric": 1700, "timestamptz": 1184, "bytea": 17}

Row = Sequence[str | None]


def column_type(name: str, modifier: int = -1) -> ColumnType:
    return ColumnType(OIDS.get(name, 1), name, modifier)


def array_of(element: ColumnType) -> ColumnType:
    return ColumnType(1, f"_{element.name}", -1, TypeKind.ARRAY, element)


def numeric(precision: int, scale: int) -> ColumnType:
    return column_type("numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


def table(
    id: int,
    name: str,
    columns: Mapping[str, str | ColumnType],
    version: int = 1,
    key: Sequence[str] = ("id",),
) -> TableSchema:
    return TableSchema(
        TableId(id),
        version,
        TableName.parse(name),
        ReplicaIdentity.DEFAULT,
        tuple(
            Column(each, column_type(type) if isinstance(type, str) else type, each in key)
            for each, type in columns.items()
        ),
    )


USERS = table(1, "public.users", {"id": "int4", "name": "text", "score": numeric(10, 2)})
ORDERS = table(2, "public.orders", {"id": "int8", "note": "text"})


class MadeSpool:
    """Writes transactions, one commit every `STEP`; each `commit` is a segment of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = SpoolWriter(path, IDENTITY, START)
        self._at = START.value
        self._rows: list[dict[str, Any]] = []

    def learn(self, *schemas: TableSchema) -> None:
        for schema in schemas:
            self._writer.learn(schema)

    def insert(self, table: TableSchema, *rows: Row) -> MadeSpool:
        for row in rows:
            self._add(Op.INSERT, table, after=list(row))
        return self

    def update(self, table: TableSchema, after: Row, **more: Any) -> MadeSpool:
        self._add(Op.UPDATE, table, after=list(after), **more)
        return self

    def delete(self, table: TableSchema, before: Row, kind: BeforeKind = BeforeKind.KEY) -> MadeSpool:
        self._add(Op.DELETE, table, before=list(before), before_kind=kind)
        return self

    def truncate(self, table: TableSchema, *options: str) -> MadeSpool:
        self._add(Op.TRUNCATE, table, after=list(options))
        return self

    def message(self, prefix: str, content: bytes) -> MadeSpool:
        self._add(Op.MESSAGE, None, after=[prefix, "transactional", f"\\x{content.hex()}"])
        return self

    def _add(self, op: Op, table: TableSchema | None, **given: Any) -> None:
        self._rows.append(
            {
                "table_id": table.id if table else NO_TABLE,
                "schema_version": table.version if table else 0,
                "op": op,
                "seq": len(self._rows),
                "committed_at": WHEN,
                "before_kind": BeforeKind.NONE,
                "before": None,
                "after": None,
                "unchanged": None,
            }
            | given
        )

    def commit(self) -> Lsn:
        """End the transaction; the position after it."""
        commit = self._at + 0x10
        self._at += STEP
        places = [{"commit_lsn": commit, "lsn": commit - 8, "xid": commit} | row for row in self._rows]
        batch = pa.RecordBatch.from_pylist(places, SCHEMA)
        self._rows = []
        self._writer.append(batch, batch.num_rows, Lsn(self._at))
        self._writer.cut()
        return Lsn(self._at)

    def pass_time(self) -> Lsn:
        """Capture comes further without a change."""
        self._at += STEP
        self._writer.append(pa.RecordBatch.from_pylist([], SCHEMA), 0, Lsn(self._at))
        self._writer.cut()
        return Lsn(self._at)

    def retire(self, before: Lsn) -> int:
        return self._writer.retire(before)

    def consumers(self) -> dict[str, Lsn]:
        with closing(Manifest.open(self.path)) as manifest:
            return manifest.consumers()

    def close(self) -> None:
        self._writer.close()

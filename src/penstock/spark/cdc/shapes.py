"""The two shapes in which the stream of changes reaches Spark, made from a segment's rows.

`AllTables`: every change of every table, old and new row as maps from column name to PostgreSQL's text.
`OneTable`: the changes of one table, in its real columns with their types. Both are values that travel to the
executors with the query; `batch` runs there, on the rows of one table under one version of its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.arrow_types import TIMESTAMP, arrow_type, can_follow
from penstock.changes.columns import (
    BEFORE_KINDS,
    MAP,
    NAMES,
    OPERATIONS,
    RowColumns,
    completed,
    named,
    places_kept,
    unchanged_names,
)
from penstock.changes.typed import first_refused, typed
from penstock.model import Column, Lsn, TableSchema
from penstock.model.errors import SpoolDamaged, ValueRefused
from penstock.spool.segment import BeforeKind, Op

SHOWN = 60
"""Characters of a refused value in its error."""


class Shape(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def batch(self, rows: pa.RecordBatch, table: TableSchema | None) -> pa.RecordBatch:
        """Return rows of a segment, all of one table and version (None: logical messages), in this shape."""
        ...


ALL_TABLES = pa.schema(
    [
        ("table", pa.string()),
        ("op", pa.string()),
        ("before", MAP),
        ("after", MAP),
        ("unchanged", NAMES),
        ("before_kind", pa.string()),
        ("commit_lsn", pa.int64()),
        ("lsn", pa.int64()),
        ("seq", pa.int64()),
        ("xid", pa.int64()),
        ("committed_at", TIMESTAMP),
        ("table_id", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class AllTables:
    @property
    def schema(self) -> pa.Schema:
        return ALL_TABLES

    def batch(self, rows: pa.RecordBatch, table: TableSchema | None) -> pa.RecordBatch:
        if table is None:
            name, names = pa.nulls(rows.num_rows, pa.string()), tuple[str, ...]()
            before, after = pa.nulls(rows.num_rows, MAP), _messages(rows["after"])
        else:
            name, names = pa.repeat(str(table.name), rows.num_rows), table.column_names
            before, after = _old_rows(rows, table), _new_rows(rows, table)
        return pa.record_batch(
            [
                name,
                named(rows["op"], OPERATIONS),
                before,
                after,
                unchanged_names(rows["unchanged"], names),
                named(rows["before_kind"], BEFORE_KINDS),
                *(rows[column] for column in ALL_TABLES.names[6:]),
            ],
            schema=ALL_TABLES,
        )


def _old_rows(rows: pa.RecordBatch, table: TableSchema) -> pa.MapArray:
    """`before` by column name; where only the key was sent, only the key's columns."""
    kinds, key = np.asarray(rows["before_kind"]), np.zeros(len(table.columns), np.bool_)
    key[list(table.key)] = True
    only_key = kinds == BeforeKind.KEY
    keep = None if not only_key.any() else np.where(only_key[:, None], key, True)
    return RowColumns(rows["before"], len(table.columns)).maps(table.column_names, keep)


def _new_rows(rows: pa.RecordBatch, table: TableSchema) -> pa.MapArray:
    """`after` by column name, without what PostgreSQL did not send; a truncate's options."""
    truncate = pc.equal(rows["op"], int(Op.TRUNCATE))
    keep = places_kept(rows["unchanged"], len(table.columns))
    if not pc.any(truncate).as_py():
        return RowColumns(rows["after"], len(table.columns)).maps(table.column_names, keep)
    maps = RowColumns(_unless(truncate, rows["after"]), len(table.columns)).maps(table.column_names, keep)
    options = pc.binary_join(rows["after"], ", ")
    option_maps = pa.MapArray.from_arrays(
        pa.array(range(len(rows) + 1), pa.int32()), pa.repeat("options", len(rows)), options, MAP
    )
    return pc.if_else(truncate, option_maps, maps)


def _messages(after: pa.ListArray) -> pa.MapArray:
    message = RowColumns(after, 3)
    transactional = pc.if_else(pc.equal(message.column(1), "transactional"), "true", "false")
    values = pa.concat_arrays([message.column(0), transactional, message.column(2)])
    in_order = np.arange(len(values)).reshape(3, -1).T.ravel()
    return RowColumns(
        pa.ListArray.from_arrays(pa.array(range(0, len(values) + 1, 3), pa.int32()), values.take(in_order)), 3
    ).maps(("prefix", "transactional", "content"), None)


def _unless(mask: pa.BooleanArray, lists: pa.ListArray) -> pa.ListArray:
    return pc.if_else(mask, pa.scalar(None, lists.type), lists)


SYSTEM_COLUMNS = (
    pa.field("_op", pa.string()),
    pa.field("_commit_lsn", pa.int64()),
    pa.field("_lsn", pa.int64()),
    pa.field("_seq", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", TIMESTAMP),
    pa.field("_unchanged", NAMES),
)


@dataclass(frozen=True, slots=True)
class OneTable:
    """`columns` are those the stream was started with; rows of other versions are fitted to them by name."""

    columns: tuple[Column, ...]
    with_before: bool = False

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field(column.name, arrow_type(column.type)) for column in self.columns]
        before = [pa.field("_before", pa.struct(fields))] if self.with_before else []
        return pa.schema([*SYSTEM_COLUMNS, *before, *fields])

    def batch(self, rows: pa.RecordBatch, table: TableSchema | None) -> pa.RecordBatch:
        if table is None:
            raise SpoolDamaged("a logical message stands among the rows of a table")
        before = [self._old(rows, table)] if self.with_before else []
        return pa.record_batch(
            [
                named(rows["op"], OPERATIONS),
                *(rows[field.name.removeprefix("_")] for field in SYSTEM_COLUMNS[1:-1]),
                unchanged_names(rows["unchanged"], table.column_names),
                *before,
                *self._typed(_current(rows, len(table.columns)), rows, table),
            ],
            schema=self.schema,
        )

    def _old(self, rows: pa.RecordBatch, table: TableSchema) -> pa.StructArray:
        fields = list(self.schema.field("_before").type)
        return pa.StructArray.from_arrays(
            self._typed(rows["before"], rows, table), fields=fields, mask=rows["before"].is_null()
        )

    def _typed(self, lists: pa.ListArray, rows: pa.RecordBatch, table: TableSchema) -> list[pa.Array]:
        values = RowColumns(lists, len(table.columns))
        places = {name: place for place, name in enumerate(table.column_names)}
        return [
            typed_column(values.column(places[column.name]), column, rows, table)
            if column.name in places
            else pa.nulls(len(rows), arrow_type(column.type))
            for column in self.columns
        ]

    def refuse_types_of(self, table: TableSchema) -> None:
        """Refuse rows of a version whose text would mean something else under the types of today."""
        types = {column.name: column.type for column in table.columns}
        for column in self.columns:
            old = types.get(column.name)
            if old is not None and not can_follow(old, column.type):
                raise ValueRefused(
                    f"the column was {old.base.name} when these rows were written and is "
                    f"{column.type.base.name} now",
                    table=table.name,
                    column=column.name,
                )


def _current(rows: pa.RecordBatch, width: int) -> pa.ListArray:
    """Return each row as it is after the change; for a delete as it was, for a truncate nothing."""
    truncate = pc.equal(rows["op"], int(Op.TRUNCATE))
    if pc.any(truncate).as_py():
        rows = rows.set_column(
            rows.schema.get_field_index("after"), "after", _unless(truncate, rows["after"])
        )
    current = completed(rows, width)
    delete = pc.equal(rows["op"], int(Op.DELETE))
    return pc.if_else(delete, rows["before"], current) if pc.any(delete).as_py() else current


def typed_column(text: pa.StringArray, column: Column, rows: pa.RecordBatch, table: TableSchema) -> pa.Array:
    try:
        return typed(text, column.type)
    except pa.ArrowInvalid:
        place = first_refused(text, column.type)
        value = text[place].as_py()
        raise ValueRefused(
            f"a value does not fit {arrow_type(column.type)}",
            table=table.name,
            column=column.name,
            value=repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…"),
            lsn=Lsn(rows["lsn"][place].as_py()),
        ) from None

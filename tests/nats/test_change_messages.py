"""Changes as messages, decoded again, beside what plain Python makes of the spool's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.changes import copy_text
from penstock.changes.columns import OPERATIONS
from penstock.changes.encoded import Encoding
from penstock.destinations.nats.change_messages import FIELDS, ChangeMessages, MessageBlock
from penstock.destinations.protocol import Delivery
from penstock.model import Column, ColumnType, ReplicaIdentity, TableName, TableSchema
from penstock.model.errors import ValueRefused
from penstock.spool.segment import EMPTY, SCHEMA, BeforeKind, Op
from tests.changes.changing import BY_KEY, FULL, KEY, Key, Values, changing, cuts, play, starts, steps
from tests.changes.encoding import decoded, json_value, packed_value
from tests.changes.made import WHEN, column_type, table
from tests.changes.test_encoded import BOTH

SOURCE = 'the "shop"'
TYPED = table(
    16_400,
    "sales.items",
    {
        **{
            "id": "int8",
            "name": "text",
            "price": "numeric",
            "ok": "bool",
            "ratio": "float8",
            "size": "float4",
        },
        **{"raw": "bytea", "info": "jsonb", "at": "timestamptz", 'a "b"\n': "text"},
    },
)
ROW = [
    "-5",
    'say "x"\n',
    "12.50",
    "t",
    "0.25",
    "36.6",
    "\\x00ff",
    '{"a": [1, 2.5, "é"]}',
    "2026-01-01 00:00:00+00",
    "",
]
OTHER_ROW = ["7", "", "NaN", "f", "NaN", "-Infinity", "\\x", "null", "infinity", None]


def full(schema: TableSchema) -> TableSchema:
    columns = tuple(replace(column, key=True) for column in schema.columns)
    return replace(schema, identity=ReplicaIdentity.FULL, columns=columns)


def textual(schema: TableSchema) -> TableSchema:
    """The keys of random histories are no numbers."""
    return replace(
        schema, columns=tuple(replace(column, type=column_type("text")) for column in schema.columns)
    )


def change(schema: TableSchema, op: Op, **given: Any) -> dict[str, Any]:
    about = {
        "table_id": schema.id,
        "schema_version": 1,
        "op": op,
        "commit_lsn": 0xA_01B2_C3D4,
        "lsn": 0xA_01B2_C300,
    }
    nothing = {"before_kind": BeforeKind.NONE, "before": None, "after": None, "unchanged": None}
    return about | {"seq": 12, "xid": 4_000_000_000, "committed_at": WHEN} | nothing | given


def delivery_of(schema: TableSchema, *primary_key: str) -> Delivery:
    return Delivery(SOURCE, schema, schema.name, primary_key=primary_key)


def blocks(delivery: Delivery, encoding: Encoding, batch: pa.RecordBatch) -> list[MessageBlock]:
    return list(ChangeMessages(delivery, encoding).blocks(batch))


def messages(delivery: Delivery, encoding: Encoding, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(changes, SCHEMA)
    return [
        decoded(block.message(number), encoding)
        for block in blocks(delivery, encoding, batch)
        for number in range(len(block))
    ]


def expected(change: Mapping[str, Any], delivery: Delivery, encoding: Encoding) -> dict[str, Any]:
    """The message of a change, from the row of the spool."""
    schema, op = delivery.table, change["op"]
    columns = schema.columns
    name = schema.name.name if schema.name.schema == "public" else f"{schema.name.schema}_{schema.name.name}"
    lsn, commit_lsn = (
        f"{change[at] >> 32:08X}/{change[at] & 0xFFFFFFFF:08X}" for at in ("lsn", "commit_lsn")
    )
    given = {"none": [], "key": [c for c in columns if c.key], "full": [*columns]}[
        BeforeKind(change["before_kind"]).name.lower()
    ]
    old = {c.name: dict(zip(schema.column_names, change["before"], strict=True))[c.name] for c in given}
    data: dict[str, str | None] = {}
    unsent = []
    if op == Op.DELETE:
        key = delivery.key or schema.column_names
        data = {c.name: old[c.name] if c.name in key else None for c in columns}
    elif op != Op.TRUNCATE:
        data = dict(zip(schema.column_names, change["after"], strict=True))
        for place in change["unchanged"] or ():
            if columns[place].name in old:
                data[columns[place].name] = old[columns[place].name]
            else:
                del data[columns[place].name]
                unsent.append(columns[place].name)
    message = {
        "data": _values(data, columns, encoding),
        "msg_id": f"{commit_lsn}-{change['seq']}-{name}-{OPERATIONS[op]}",
        "operation": OPERATIONS[op].upper(),
        "relation_id": schema.id,
        "subject": f"cdc.{name}.{OPERATIONS[op]}",
        "table": name,
        "source": SOURCE,
        "lsn": lsn,
        "commit_lsn": commit_lsn,
        "seq": change["seq"],
        "xid": change["xid"],
        "committed_at": _iso(change["committed_at"]),
    }
    if change["before_kind"] != BeforeKind.NONE:
        message["old"] = _values(old, columns, encoding)
    if unsent:
        message["unchanged"] = unsent
    return message


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _values(row: dict[str, str | None], columns: tuple[Column, ...], encoding: Encoding) -> dict[str, Any]:
    meaning = json_value if encoding is Encoding.JSON else packed_value
    types = {column.name: column.type for column in columns}
    return {name: None if text is None else meaning(text, types[name]) for name, text in row.items()}


@BOTH
@pytest.mark.parametrize("schema", [textual(BY_KEY), textual(FULL)], ids=["key", "full"])
@settings(max_examples=100)
@given(start=starts, steps=steps, cuts=cuts)
def test_every_change_of_a_history_is_one_message(
    schema: TableSchema,
    encoding: Encoding,
    start: dict[Key, Values],
    steps: list[tuple[Any, ...]],
    cuts: list[int],
) -> None:
    history = changing(schema, start)
    for step in steps:
        play(history, step)
    delivery = delivery_of(schema, *KEY)
    rendered = [block for batch in history.batches(cuts) for block in blocks(delivery, encoding, batch)]
    sent = [decoded(block.message(number), encoding) for block in rendered for number in range(len(block))]
    assert [repr(message) for message in sent] == [
        repr(expected(row, delivery, encoding)) for row in history.changes
    ]
    ids = [id for block in rendered for id in block.ids.to_pylist()]
    assert ids == [message["msg_id"] for message in sent]
    assert len(set(ids)) == len(ids)
    assert [int(op) for block in rendered for op in block.operations] == [
        row["op"] for row in history.changes
    ]


def _combinations() -> list[tuple[str, dict[str, Any]]]:
    """Every operation with every identity, with and without values that were not sent."""
    only_key = [ROW[0], *[None] * (len(ROW) - 1)]
    olds = {
        "none": {},
        "key": {"before_kind": BeforeKind.KEY, "before": only_key},
        "full": {"before_kind": BeforeKind.FULL, "before": ROW},
    }
    combinations = []
    for (name, old), op, unchanged in product(
        olds.items(), (Op.INSERT, Op.UPDATE), ([], [1], [1, 7], [0, 1, 9])
    ):
        after = [None if place in unchanged else value for place, value in enumerate(OTHER_ROW)]
        combinations.append(
            (
                f"{name} {op.name} {unchanged}",
                {"op": op, "after": after, "unchanged": unchanged or None} | old,
            )
        )
    combinations += [(f"{name} DELETE", {"op": Op.DELETE} | olds[name]) for name in ("key", "full")]
    combinations += [
        (f"TRUNCATE {options}", {"op": Op.TRUNCATE, "after": options}) for options in ([], ["cascade"])
    ]
    return combinations


COMBINATIONS = dict(_combinations())
DELIVERIES = {
    "default": delivery_of(TYPED, "id"),
    "full": delivery_of(full(TYPED), "id"),
    "without key": delivery_of(full(TYPED)),
    "index": delivery_of(replace(TYPED, identity=ReplicaIdentity.INDEX)),
    "nothing": delivery_of(
        replace(
            TYPED,
            identity=ReplicaIdentity.NOTHING,
            columns=tuple(replace(column, key=False) for column in TYPED.columns),
        )
    ),
}


def is_sent(name: str, combination: str) -> bool:
    """Whether PostgreSQL sends it: no delete without an identity, and the whole old row where that is all."""
    row = change(DELIVERIES[name].table, **COMBINATIONS[combination])
    if row["op"] != Op.DELETE or name == "nothing":
        return bool(row["op"] != Op.DELETE)
    return row["before_kind"] != BeforeKind.KEY or name not in ("full", "without key")


SENT = [
    (name, combination) for name in DELIVERIES for combination in COMBINATIONS if is_sent(name, combination)
]


@BOTH
@pytest.mark.parametrize(("name", "combination"), SENT)
def test_every_operation_under_every_identity(encoding: Encoding, name: str, combination: str) -> None:
    delivery = DELIVERIES[name]
    row = change(delivery.table, **COMBINATIONS[combination])
    assert repr(messages(delivery, encoding, row)) == repr([expected(row, delivery, encoding)])


@BOTH
@pytest.mark.parametrize("name", ["default", "full"])
def test_all_of_them_in_one_batch(encoding: Encoding, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery = DELIVERIES[name]
    rows = [change(delivery.table, **given) | {"seq": seq} for seq, given in enumerate(COMBINATIONS.values())]
    wanted = [repr(expected(row, delivery, encoding)) for row in rows]
    assert [repr(message) for message in messages(delivery, encoding, *rows)] == wanted
    monkeypatch.setattr(copy_text, "CHUNK", 2000)
    batch = pa.RecordBatch.from_pylist([*rows[:3], *rows], SCHEMA).slice(3)
    pieces = blocks(delivery, encoding, batch)
    assert len(pieces) > 5
    parts = [decoded(block.message(number), encoding) for block in pieces for number in range(len(block))]
    assert [repr(message) for message in parts] == wanted
    assert pa.Table.from_batches([block.changes for block in pieces]).to_pylist() == batch.to_pylist()


@BOTH
def test_a_message_as_it_is_documented(encoding: Encoding) -> None:
    (message,) = messages(DELIVERIES["default"], encoding, change(TYPED, Op.INSERT, after=ROW))
    assert tuple(message) == FIELDS
    assert message == {
        "data": {
            **{"id": -5, "name": 'say "x"\n', "price": "12.50", "ok": True, "ratio": 0.25, "size": 36.6},
            **{"raw": "\\x00ff" if encoding is Encoding.JSON else b"\x00\xff", "info": {"a": [1, 2.5, "é"]}},
            **{"at": "2026-01-01 00:00:00+00", 'a "b"\n': ""},
        },
        "msg_id": "0000000A/01B2C3D4-12-sales_items-insert",
        **{"operation": "INSERT", "relation_id": 16_400, "subject": "cdc.sales_items.insert"},
        **{"table": "sales_items", "source": SOURCE, "lsn": "0000000A/01B2C300"},
        **{"commit_lsn": "0000000A/01B2C3D4", "seq": 12, "xid": 4_000_000_000},
        "committed_at": "2026-01-02T03:04:05.678901Z",
    }


@BOTH
def test_an_update_of_a_key_is_one_message_with_the_old_key(encoding: Encoding) -> None:
    before = ["1", *[None] * 9]
    row = change(TYPED, Op.UPDATE, after=ROW, before_kind=BeforeKind.KEY, before=before)
    (message,) = messages(DELIVERIES["default"], encoding, row)
    assert (message["data"]["id"], message["old"]) == (-5, {"id": 1})


@BOTH
def test_a_delete_has_its_key_and_nulls(encoding: Encoding) -> None:
    row = change(TYPED, Op.DELETE, before_kind=BeforeKind.FULL, before=ROW)
    (message,) = messages(DELIVERIES["full"], encoding, row)
    assert message["data"] == {"id": -5} | dict.fromkeys(TYPED.column_names[1:])
    assert message["old"]["name"] == ROW[1]


@BOTH
def test_no_changes_are_no_messages(encoding: Encoding) -> None:
    assert blocks(DELIVERIES["default"], encoding, EMPTY) == []
    some = pa.RecordBatch.from_pylist([change(TYPED, Op.INSERT, after=ROW)], SCHEMA)
    assert blocks(DELIVERIES["default"], encoding, some.slice(1)) == []


@BOTH
def test_a_table_without_columns_has_empty_rows(encoding: Encoding) -> None:
    delivery = delivery_of(replace(TYPED, columns=()))
    row = change(TYPED, Op.INSERT, after=[])
    assert messages(delivery, encoding, row) == [expected(row, delivery, encoding)]


@BOTH
def test_many_truncates_among_rows_keep_their_order(encoding: Encoding) -> None:
    rows = [
        change(TYPED, Op.TRUNCATE if seq % 2 else Op.INSERT, seq=seq, after=["cascade"] if seq % 2 else ROW)
        for seq in range(50)
    ]
    sent = messages(DELIVERIES["default"], encoding, *rows)
    assert [(message["seq"], message["operation"]) for message in sent] == [
        (seq, "TRUNCATE" if seq % 2 else "INSERT") for seq in range(50)
    ]


@BOTH
def test_names_of_any_kind_are_written_as_the_encoding_wants(encoding: Encoding) -> None:
    name = TableName('sche"ma', 'ta\\ble "x" é😀')
    columns = (Column("ключ\\", column_type("int4"), True), Column("x" * 63, ColumnType(25, "text")))
    schema = replace(TYPED, name=name, columns=columns)
    (message,) = messages(delivery_of(schema), encoding, change(schema, Op.INSERT, after=["1", "2"]))
    assert message["data"] == {"ключ\\": 1, "x" * 63: "2"}
    assert message["table"] == 'sche"ma_ta\\ble%20"x"%20é😀'
    assert message["msg_id"].endswith(f"-{message['table']}-insert")
    assert message["subject"] == f"cdc.{message['table']}.insert"


def test_a_wrong_value_is_told_with_its_table_and_column() -> None:
    row = change(TYPED, Op.INSERT, after=[*ROW[:7], "hidden", *ROW[8:]])
    with pytest.raises(ValueRefused, match=r"'hidden' \(table sales.items, column info\)"):
        messages(DELIVERIES["default"], Encoding.MESSAGE_PACK, row)

"""Columns of values, decoded again by other people's decoders, beside what plain Python makes of the text."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.columns import RowColumns
from penstock.changes.encoded import Encoding, encoded
from penstock.changes.text_columns import TextRows
from penstock.model import ColumnType, TypeKind
from penstock.model.errors import ValueRefused
from tests.changes.encoding import among_others, decoded_values, json_value, packed_value
from tests.changes.made import array_of, column_type, numeric

BOTH = pytest.mark.parametrize("encoding", list(Encoding))
LENGTHS = (0, 1, 31, 32, 255, 256, 65_535, 65_536, 70_000)
"""Around those where a header becomes longer."""

_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_text = st.text(st.sampled_from('"\\/\b\f\n\r\t\x01\x1f\x7f {}é日\u2028😀')) | st.text(
    _characters, max_size=50
)


def _limits(bits: int) -> list[int]:
    """The integers at which another number of bits begins."""
    limits = [sign * 2**power + more for power in range(bits) for sign in (1, -1) for more in (-1, 0, 1)]
    return [value for value in limits if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)]


def _integers(bits: int) -> st.SearchStrategy[str]:
    return (st.sampled_from(_limits(bits)) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)).map(str)


def _as_postgres_writes(value: float) -> str:
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    text = repr(value)
    return words.get(text, text.removesuffix(".0"))


def _single(value: float) -> str:
    return _as_postgres_writes(float(str(np.float32(value))))


TYPES: dict[str, tuple[ColumnType, st.SearchStrategy[str]]] = {
    "int2": (column_type("int2"), _integers(16)),
    "int4": (column_type("int4"), _integers(32)),
    "int8": (column_type("int8"), _integers(64)),
    "oid": (column_type("oid"), st.integers(0, 2**32 - 1).map(str)),
    "float4": (column_type("float4"), st.floats(width=32).map(_single)),
    "float8": (column_type("float8"), st.floats().map(_as_postgres_writes)),
    "bool": (column_type("bool"), st.sampled_from("tf")),
    "bytea": (column_type("bytea"), st.binary().map(lambda value: f"\\x{value.hex()}")),
    "text": (column_type("text"), _text),
    "numeric": (numeric(30, 4), st.sampled_from(["NaN", "-Infinity", "0.0000", "9" * 100])),
    "uuid": (column_type("uuid"), st.uuids().map(str)),
    "timestamptz": (column_type("timestamptz"), st.datetimes().map(lambda value: f"{value}+00")),
    "array": (array_of(column_type("int4")), st.sampled_from(["{}", "{1,NULL}", "{{1},{2}}"])),
    "enum": (ColumnType(20_000, "bool", -1, TypeKind.ENUM), _text),
    "domain": (ColumnType(20_001, "text", -1, TypeKind.DOMAIN, column_type("int8")), _integers(64)),
    "foreign": (ColumnType(20_002, "int4"), st.just("a type of somebody's own that is called int4")),
}


@BOTH
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60)
@given(data=st.data(), before=st.integers(0, 9))
def test_a_value_is_what_plain_python_makes_of_its_text(
    name: str, encoding: Encoding, data: st.DataObject, before: int
) -> None:
    type, value = TYPES[name]
    texts = data.draw(st.lists(st.none() | value, max_size=20))
    meaning: Callable[[str, ColumnType], object]
    meaning = json_value if encoding is Encoding.JSON else packed_value
    known = column_type("text") if name in ("enum", "foreign") else type
    expected = [None if text is None else meaning(text, known) for text in texts]
    column = encoded(among_others(texts, before), type, encoding)
    assert repr(decoded_values(column, encoding)) == repr(expected)
    assert len(column.data) == column.offsets[-1]


def test_integers_take_the_least_room() -> None:
    values = _limits(64)
    column = encoded(pa.array(map(str, values), pa.string()), column_type("int8"), Encoding.MESSAGE_PACK)
    assert [column[row] for row in range(len(column))] == [msgpack.packb(value) for value in values]


@given(value=st.floats(width=32, allow_nan=False))
def test_a_float4_rounded_to_a_single_is_the_one_it_was(value: float) -> None:
    column = encoded(pa.array([_single(value)]), column_type("float4"), Encoding.MESSAGE_PACK)
    sent = msgpack.unpackb(column[0])
    assert struct.pack(">f", sent) == struct.pack(">f", value)


def test_a_float4_reads_as_it_was_written() -> None:
    column = encoded(pa.array(["36.6"]), column_type("float4"), Encoding.MESSAGE_PACK)
    assert msgpack.unpackb(column[0]) == 36.6


def test_any_double_keeps_its_bits() -> None:
    values = [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -0.0, 0.1, 123456789012345680.0]
    texts = [_as_postgres_writes(value) for value in values]
    column = encoded(pa.array(texts), column_type("float8"), Encoding.MESSAGE_PACK)
    assert [column[row] for row in range(len(column))] == [msgpack.packb(value) for value in values]


@BOTH
def test_strings_of_any_length(encoding: Encoding) -> None:
    texts = [(letter * length)[:length] for letter in ("a", '"') for length in LENGTHS]
    texts += ["😀" * (length // 4) for length in LENGTHS]
    column = encoded(pa.array(texts), column_type("text"), encoding)
    assert decoded_values(column, encoding) == texts
    if encoding is Encoding.MESSAGE_PACK:
        assert [column[row] for row in range(len(column))] == [msgpack.packb(text) for text in texts]


def test_bytes_of_any_length() -> None:
    values = [bytes(range(256)) * (length // 256) + bytes(length % 256) for length in LENGTHS]
    column = encoded(
        pa.array([f"\\x{value.hex()}" for value in values]), column_type("bytea"), Encoding.MESSAGE_PACK
    )
    assert [column[row] for row in range(len(column))] == [msgpack.packb(value) for value in values]


@given(text=_text)
def test_json_escapes_what_it_must_and_nothing_else(text: str) -> None:
    column = encoded(pa.array([text]), column_type("text"), Encoding.JSON)
    assert column[0].decode() == json.dumps(text, ensure_ascii=False)


def test_what_lies_under_a_null_is_not_written() -> None:
    text = pa.array(["1", "secret", "3"])
    bits = pa.py_buffer(b"\x05")
    hidden = pa.StringArray.from_buffers(3, text.buffers()[1], text.buffers()[2], bits)
    for type in ("int4", "text", "float8", "json"):
        column = encoded(hidden, column_type(type), Encoding.MESSAGE_PACK)
        assert b"secret" not in column.data.tobytes()
        assert column[1] == b"\xc0"


@BOTH
@pytest.mark.parametrize("name", [*TYPES, "json"])
def test_no_rows_are_no_bytes(name: str, encoding: Encoding) -> None:
    type = TYPES[name][0] if name in TYPES else column_type("json")
    for texts in (pa.array([], pa.string()), pa.array(["1", None]).slice(1, 0)):
        column = encoded(texts, type, encoding)
        assert len(column) == len(column.data) == 0


@given(
    rows=st.lists(st.none() | st.tuples(_integers(32), st.none() | _text, st.none() | _text)),
    cut=st.integers(0, 5),
)
def test_a_column_of_rows_is_read_where_it_lies(rows: list[tuple[str, ...] | None], cut: int) -> None:
    lists = pa.array(rows, pa.list_(pa.string())).slice(cut)
    columns = RowColumns(lists, 3)
    for place, type in enumerate(("int4", "text", "text")):
        here = encoded(TextRows.of(columns).column(place), column_type(type), Encoding.MESSAGE_PACK)
        picked = encoded(columns.column(place), column_type(type), Encoding.MESSAGE_PACK)
        assert here.data.tobytes() == picked.data.tobytes()
        assert here.offsets.tolist() == picked.offsets.tolist()


@pytest.mark.parametrize(
    ("type", "text"),
    [
        *[
            ("int8", text)
            for text in ("", "-", "1x", "9223372036854775808", "-9223372036854775809", "1" * 30)
        ],
        *[("bool", text) for text in ("", "true", "x")],
        *[("bytea", text) for text in ("", "\\", "\\x0", "\\xzz", "00")],
        *[("float8", text) for text in ("", "x", "1,5")],
    ],
)
def test_text_that_is_no_value_of_the_type_is_refused(type: str, text: str) -> None:
    with pytest.raises(ValueRefused, match="no value of type"):
        encoded(
            pa.array([None, "1" if type == "int8" else None, text]), column_type(type), Encoding.MESSAGE_PACK
        )

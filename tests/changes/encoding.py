"""Values as consumers see them, made in plain Python from PostgreSQL's text; and messages, decoded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa

from penstock.changes.encoded import EncodedColumn, Encoding
from penstock.model import ColumnType


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def decoded(data: bytes, encoding: Encoding) -> Any:
    """A message by somebody else's decoder; maps must not repeat a name."""
    if encoding is Encoding.JSON:
        return json.loads(data, object_pairs_hook=_without_repetition)
    return msgpack.unpackb(data, object_pairs_hook=_without_repetition)


def decoded_values(column: EncodedColumn, encoding: Encoding) -> list[Any]:
    load: Callable[[bytes], Any] = json.loads if encoding is Encoding.JSON else msgpack.unpackb
    return [load(column[row]) for row in range(len(column))]


def among_others(texts: list[str | None], before: int) -> pa.StringArray:
    """The texts as a slice of a longer array."""
    around = [pa.array([None, "x"] * before, pa.string()), pa.array(["after", None])]
    whole = pa.concat_arrays([around[0], pa.array(texts, pa.string()), around[1]])
    return whole.slice(2 * before, len(texts))


def packed_value(text: str, type: ColumnType) -> Any:
    """What MessagePack has of a value."""
    match type.base.name:
        case "int2" | "int4" | "int8" | "oid":
            return int(text)
        case "float4" | "float8":
            return float(text)
        case "bool":
            return text == "t"
        case "bytea":
            return bytes.fromhex(text[2:])
        case "json" | "jsonb":
            return json.loads(text, parse_int=_integer, parse_float=_number)
        case _:
            return text


def json_value(text: str, type: ColumnType) -> Any:
    """What JSON has of a value."""
    match type.base.name:
        case "float4" | "float8":
            return json.loads(text) if math.isfinite(float(text)) else text
        case "bytea":
            return text
        case "json" | "jsonb":
            return json.loads(text)
        case _:
            return packed_value(text, type)


def _integer(text: str) -> int | float | str:
    value = int(text)
    return value if -(2**63) <= value < 2**64 and text != "-0" else _number(text)


def _number(text: str) -> float | str:
    """The double whose shortest text means the number; otherwise the text."""
    value = float(text)
    is_same = math.isfinite(value) and Decimal(repr(value)) == Decimal(text)
    return value if is_same else text

"""Values of messages as SQLite keeps them.

| PostgreSQL | SQLite |
|---|---|
| `smallint`, `integer`, `bigint`, `oid` | INTEGER |
| `real`, `double precision` | REAL; NaN and the infinities TEXT, since SQLite makes NaN NULL |
| `boolean` | INTEGER, 0 or 1 |
| `bytea` | BLOB |
| `json`, `jsonb` | TEXT: the document without spaces, members sorted |
| everything else | TEXT, as PostgreSQL prints it |

A type that is not known here by name, such as a domain, is kept as the kind of value that comes. A column of
floats is declared without a type: where it is declared REAL, SQLite makes 0 of -0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from penstock.consumer.deep_documents import written_json

Converter = Callable[[Any], Any]

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

_FLOATS = ("real", "double precision", "float4", "float8")
_DECLARED = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("boolean", "bool"), "integer"),
    "bytea": "blob",
    **dict.fromkeys(("json", "jsonb"), "text"),
    **dict.fromkeys(
        (
            *("text", "character varying", "varchar", "character", "bpchar", "char", '"char"', "name"),
            *("numeric", "money", "uuid", "date", "interval", "xml", "inet", "cidr", "bit", "bit varying"),
            *("time", "timetz", "timestamp", "timestamptz", "time without time zone", "time with time zone"),
            *("timestamp without time zone", "timestamp with time zone", "tsvector", "pg_lsn"),
        ),
        "text",
    ),
}


def declared(data_type: str) -> str:
    """Return the type that the column is declared with; nothing where any kind of value may come."""
    return _DECLARED.get(_plain(data_type), "")


def converter(data_type: str) -> Converter:
    """Return what turns a value of a message into one of SQLite."""
    plain = _plain(data_type)
    if plain in ("json", "jsonb"):
        return document
    if plain == "bytea":
        return _blob
    if plain in _FLOATS:
        return _float
    return as_it_comes


def document(value: Any) -> str | None:
    if value is None:
        return None
    try:
        text = _JSON.encode(value)
    except RecursionError:
        text = written_json(value, _JSON)
    # `json` allows half of a surrogate pair, which is no character: it stays an escape.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def as_it_comes(value: Any) -> Any:
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    return document(value) if isinstance(value, dict | list) else value


def _blob(value: Any) -> bytes | None:
    """JSON has bytes as PostgreSQL prints them."""
    return bytes.fromhex(value[2:]) if isinstance(value, str) else value


def _float(value: float | str | None) -> float | str | None:
    """JSON has whole numbers as integers, and what is no number as text."""
    if value is None or isinstance(value, str):
        return value
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(data_type: str) -> str:
    """The type without its modifier: `character varying(20)`, `timestamp(3) with time zone`."""
    if data_type.endswith("]"):
        return data_type
    before, _, rest = data_type.partition("(")
    return (before.rstrip() + rest.partition(")")[2]).lower()

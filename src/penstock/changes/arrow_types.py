"""The type map: which Arrow type a PostgreSQL type becomes; Spark's follows from that (`spark/types.py`).

Only types are made that hold every ordinary value exactly. Whatever has no such counterpart stays the text
that PostgreSQL wrote: `numeric` without a precision, times of day (PostgreSQL has 24:00:00), intervals,
ranges, composites, everything unknown. Values that the chosen type cannot hold (NaN in a decimal, infinity
as a date) are refused when they come, in `typed.py`. The full table is docs/types.md.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.model import ColumnType, TypeKind
from penstock.model.schema import FIRST_USER_OID

TEXT = pa.string()
TIMESTAMP = pa.timestamp("us", tz="UTC")

MOST_DIGITS = 38
"""Of a decimal, in Arrow and in Spark."""

_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "xid": pa.int64(),
    "cid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": TIMESTAMP,
}

# What stands between the elements of an array is a property of the element's type. It is a comma for every
# type that PostgreSQL defines itself but one; for a type that somebody else defines we cannot know.
_DELIMITERS = {"box": ";", "geometry": ":", "geography": ":"}
_KNOWN_EXTENSION_TYPES = {
    *("citext", "hstore", "ltree", "lquery", "ltxtquery", "cube"),
    *("vector", "halfvec", "sparsevec"),
    *("geometry", "geography", "box2d", "box3d"),
}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column: what `typed.typed` makes of its text."""
    type = column_type.base
    if type.kind is TypeKind.ARRAY and type.inner is not None:
        return pa.list_(arrow_type(type.inner)) if delimiter(type.inner) else TEXT
    if type.kind is not TypeKind.BASE:
        return TEXT
    if type.name == "numeric":
        return _decimal(type.modifier)
    return _TYPES.get(type.name, TEXT)


def _decimal(modifier: int) -> pa.DataType:
    """`numeric(p, s)` in PostgreSQL's encoding: p in the upper half, s as 11 bits with a sign."""
    if modifier < 4:
        return TEXT
    precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    if precision > MOST_DIGITS or not 0 <= scale <= precision:
        return TEXT
    return pa.decimal128(precision, scale)


def delimiter(element: ColumnType) -> str | None:
    """Return what separates the elements of an array of this type; None if that cannot be known."""
    type = element.base
    if type.kind is TypeKind.BASE and type.oid >= FIRST_USER_OID and type.name not in _KNOWN_EXTENSION_TYPES:
        return None
    if type.kind in (TypeKind.UNKNOWN, TypeKind.ARRAY):
        return None
    return _DELIMITERS.get(type.name, ",")


def can_follow(old: ColumnType, new: ColumnType) -> bool:
    """Whether the text of every value of `old` means the same value, exactly, as a `new`.

    A column may have changed its type; rows written before carry the old type's text.
    """
    if arrow_type(new) == TEXT:
        return True
    before, after = old.base, new.base
    if before.kind is TypeKind.ARRAY and after.kind is TypeKind.ARRAY and before.inner and after.inner:
        return can_follow(before.inner, after.inner)
    wider = {"int2": ("int4", "int8"), "int4": ("int8",)}
    return before.name == after.name or after.name in wider.get(before.name, ())

r"""PostgreSQL's text as values of MessagePack or JSON, a column at a time.

| PostgreSQL | MessagePack | JSON |
|---|---|---|
| `int2`, `int4`, `int8`, `oid` | the shortest integer | the number as it stands |
| `float4`, `float8` | a double | the number as it stands; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| `bool` | true, false | true, false |
| `bytea` | bin | `"\\x…"`, a string |
| `json`, `jsonb` | the document's values (`json_documents`) | the document as it stands |
| everything else | a str: PostgreSQL's own text | a string: PostgreSQL's own text |

NULL is nil or null. A `float4` becomes the double that its text means: 36.6 is 36.6, and not the
36.599998474121094 that its bits make of it; whoever wants a single again rounds, and has the same one.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import json_documents, json_text, message_pack
from penstock.changes.text_columns import TextColumn
from penstock.changes.typed import first_refused
from penstock.model import ColumnType, TypeKind
from penstock.model.compiled import Bytes, Int64s
from penstock.model.errors import ValueRefused
from penstock.model.schema import FIRST_USER_OID

TEXT = ColumnType(25, "text")
INT8 = ColumnType(20, "int8")
_FLOAT8 = ColumnType(701, "float8")

LONGEST_SHOWN = 80
"""Characters of a value in a message."""


class Encoding(StrEnum):
    MESSAGE_PACK = "msgpack"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """Value n is the bytes offsets[n] up to offsets[n + 1] of `data`."""

    offsets: Int64s
    data: Bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def texts(self) -> pa.StringArray:
        """Return values that are text as they stand."""
        offsets = pa.py_buffer(self.offsets.astype(np.int32))
        return pa.StringArray.from_buffers(len(self), offsets, pa.py_buffer(self.data))


class _Rule(Enum):
    INTEGER = ("int2", "int4", "int8", "oid")
    FLOAT = ("float4", "float8")
    BOOLEAN = ("bool",)
    BYTES = ("bytea",)
    DOCUMENT = ("json", "jsonb")
    STRING = ()


_RULES = {name: rule for rule in _Rule for name in rule.value}


def encoded(text: pa.StringArray | TextColumn, type: ColumnType, encoding: Encoding) -> EncodedColumn:
    """Return the values of a column. Raises ValueRefused where the text is none of the type."""
    column = text if isinstance(text, TextColumn) else TextColumn.of(text)
    offsets = np.zeros(len(column) + 1, np.int64)
    refused, data = _WRITERS[encoding][_rule_of(type)](column, offsets[1:])
    if refused != message_pack.FINE:
        raise ValueRefused(
            f"a text is no value of type {type.base.name}: {column[refused][:LONGEST_SHOWN]!r}",
            remedy="A rule of `set` may have made it: let it give a value of the column's type",
        )
    return EncodedColumn(offsets, data)


def encoded_constants(texts: Sequence[str], encoding: Encoding, type: ColumnType = TEXT) -> list[bytes]:
    """Return single values, such as the names of columns."""
    column = encoded(pa.array(texts, pa.string()), type, encoding)
    return [column[row] for row in range(len(column))]


def _rule_of(type: ColumnType) -> _Rule:
    base = type.base
    if base.kind is not TypeKind.BASE or base.oid >= FIRST_USER_OID:
        return _Rule.STRING
    return _RULES.get(base.name, _Rule.STRING)


_Writer = Callable[[TextColumn, Int64s], tuple[int, Bytes]]
"""Writes a column one behind the other, and where each value ends; returns the row of a value that is none
of the type, or FINE, and the bytes."""


def _writer(
    write: Callable[[Bytes, Int64s, Int64s, Bytes, Int64s], int], room: int, *, with_text: bool
) -> _Writer:
    """Give compiled code the room that it needs for each value, and for the text."""

    def written(column: TextColumn, ends: Int64s) -> tuple[int, Bytes]:
        output = np.empty(len(ends) * room + (column.size if with_text else 0), np.uint8)
        refused = write(column.text, column.starts, column.stops, output, ends)
        return refused, output[: ends[-1] if len(ends) else 0]

    return written


def _packed_floats(column: TextColumn, ends: Int64s) -> tuple[int, Bytes]:
    text = column.array("0")
    try:
        bits = np.asarray(pc.cast(text, pa.float64())).view(np.int64)
    except pa.ArrowInvalid:
        return first_refused(text, _FLOAT8), np.empty(0, np.uint8)
    output = np.empty(len(ends) * message_pack.LONGEST_NUMBER, np.uint8)
    message_pack.pack_floats(bits, column.starts, output, ends)
    return message_pack.FINE, output[: ends[-1] if len(ends) else 0]


def _json_strings(column: TextColumn, ends: Int64s) -> tuple[int, Bytes]:
    added = np.empty(len(ends), np.int64)
    texts = column.text, column.starts, column.stops
    output = np.empty(json_text.measure_strings(*texts, added), np.uint8)
    return json_text.write_strings(*texts, added, output, ends), output


def _json_documents(column: TextColumn, ends: Int64s) -> tuple[int, Bytes]:
    refused = json_documents.first_wrong(column)
    if refused != message_pack.FINE:
        return refused, np.empty(0, np.uint8)
    return _as_it_stands(column, ends)


_as_it_stands = _writer(json_text.write_as_it_stands, json_text.LONGEST_WORD, with_text=True)

_WRITERS: dict[Encoding, dict[_Rule, _Writer]] = {
    Encoding.MESSAGE_PACK: {
        _Rule.INTEGER: _writer(message_pack.pack_integers, message_pack.LONGEST_NUMBER, with_text=False),
        _Rule.FLOAT: _packed_floats,
        _Rule.BOOLEAN: _writer(message_pack.pack_booleans, 1, with_text=False),
        _Rule.BYTES: _writer(message_pack.pack_bytes, message_pack.LONGEST_HEADER, with_text=True),
        _Rule.DOCUMENT: json_documents.pack_documents,
        _Rule.STRING: _writer(message_pack.pack_strings, message_pack.LONGEST_HEADER, with_text=True),
    },
    Encoding.JSON: {
        _Rule.INTEGER: _as_it_stands,
        _Rule.FLOAT: _writer(json_text.write_floats, json_text.LONGEST_WORD, with_text=True),
        _Rule.BOOLEAN: _writer(json_text.write_booleans, json_text.LONGEST_WORD, with_text=False),
        _Rule.BYTES: _json_strings,
        _Rule.DOCUMENT: _json_documents,
        _Rule.STRING: _json_strings,
    },
}

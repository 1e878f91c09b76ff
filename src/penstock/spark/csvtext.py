"""CSV as PostgreSQL's COPY writes it: NULL is nothing at all, an empty string is `""`.

A value is quoted where it has to be: if it holds a comma, a quote, a line's end, or nothing. Columns without
such a value, most of them, are taken as they are; in the others every value is looked at by compiled code.
Arrow then joins the columns, and the joined array's buffer is the text.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.compiled import Bytes, Int32s, kernel
from penstock.spark.copytext import cut, ends_of, offsets_of, text_of

_COMMA, _QUOTE, _NEWLINE, _RETURN = b',"\n\r'


def csv_text(columns: Sequence[pa.StringArray]) -> Iterator[memoryview]:
    """The rows of these columns, a little at a time."""
    ends = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        ends += ends_of(column)
    for first, count in cut(ends):
        yield _joined([quoted(column.slice(first, count)) for column in columns])


def csv_line(values: Sequence[str]) -> bytes:
    """A line by itself, such as the header."""
    return b"".join(csv_text([pa.array([value], pa.string()) for value in values]))


def quoted(column: pa.StringArray) -> pa.StringArray:
    """The values with quotes around those that need them."""
    if not len(column):
        return column
    offsets, data = offsets_of(column), column.buffers()[2]
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    sizes = np.empty(len(column) + 1, np.int32)
    if not _measure(offsets, text, sizes):
        return column
    ends = np.cumsum(sizes, dtype=np.int32)
    made = np.empty(int(ends[-1]), np.uint8)
    _fill(offsets, text, ends, made)
    valid = None
    if column.null_count:  # a null measures as an empty string does; it stays null
        valid = pc.is_valid(column).buffers()[1]
    return pa.StringArray.from_buffers(len(column), pa.py_buffer(ends), pa.py_buffer(made), valid)


@kernel
def _measure(offsets: Int32s, text: Bytes, sizes: Int32s) -> bool:
    """How long each value is when it is quoted as it needs to be; whether any needs it."""
    sizes[0] = 0
    any_needs = False
    for row in range(len(offsets) - 1):
        first, end = offsets[row], offsets[row + 1]
        quotes, needs = 0, first == end
        for place in range(first, end):
            byte = text[place]
            if byte == _QUOTE:
                quotes += 1
                needs = True
            elif byte in (_COMMA, _NEWLINE, _RETURN):
                needs = True
        sizes[row + 1] = end - first + (quotes + 2 if needs else 0)
        any_needs |= needs
    return any_needs


@kernel
def _fill(offsets: Int32s, text: Bytes, ends: Int32s, made: Bytes) -> None:
    for row in range(len(offsets) - 1):
        at, end = ends[row], ends[row + 1]
        first, last = offsets[row], offsets[row + 1]
        plain = end - at == last - first
        if not plain:
            made[at] = _QUOTE
            at += 1
        for place in range(first, last):
            byte = text[place]
            made[at] = byte
            at += 1
            if byte == _QUOTE:
                made[at] = byte
                at += 1
        if not plain:
            made[at] = _QUOTE


def _joined(columns: Sequence[pa.StringArray]) -> memoryview:
    options = {"null_handling": "replace", "null_replacement": ""}
    last = pc.binary_join_element_wise(columns[-1], "", "\n", **options)
    return text_of(pc.binary_join_element_wise(*columns[:-1], last, ",", **options))

r"""CSV as PostgreSQL's COPY writes it, byte for byte: NULL is nothing at all, an empty string is `""`.

A value is quoted where it has to be: if it holds a comma, a quote, a line's end, or nothing; and if it is
`\.` and the only one of its row, as that was once the end of the data. A header is a row like any other.

Compiled code goes through the columns twice: first it adds up how long each row becomes, then it puts the
values to their places. What comes at once is small enough to stay in the processor's cache.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.changes.copy_text import cut, ends_of, offsets_of
from penstock.model.compiled import Bytes, Int32s, Int64s, kernel

_COMMA, _QUOTE, _NEWLINE, _RETURN, _BACKSLASH, _DOT = b',"\n\r\\.'
_ONE = np.uintp(1)
"""Places are unsigned in the inner loops: Numba then need not ask whether one counts from the end."""
_NULL = -1
"""In place of the number of bytes that quoting adds to a value."""


def csv_text(columns: Sequence[pa.StringArray]) -> Iterator[memoryview]:
    """Yield the rows of these columns, a little at a time."""
    ends = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        ends += ends_of(column)
    for first, count in cut(ends):
        yield _lines([_Values.of(column.slice(first, count)) for column in columns], count)


def csv_line(values: Sequence[str]) -> bytes:
    """Return a line by itself, such as the header."""
    return b"".join(csv_text([pa.array([value], pa.string()) for value in values])) if values else b"\n"


@dataclass(frozen=True, slots=True)
class _Values:
    """A column as Arrow lays it out."""

    offsets: Int32s
    text: Bytes
    valid: Bytes
    """A bit for each value, from the lowest of the first byte on, after `skipped` others; empty if there is
    no NULL."""
    skipped: int

    @classmethod
    def of(cls, column: pa.StringArray) -> _Values:
        bits, _, text = column.buffers()
        valid = _bytes(bits) if column.null_count else _bytes(None)
        return cls(offsets_of(column), _bytes(text), valid, column.offset)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)


def _lines(columns: Sequence[_Values], rows: int) -> memoryview:
    added = np.empty((len(columns), rows), np.int32)
    sizes = np.zeros(rows + 1, np.int64)
    for values, more in zip(columns, added, strict=True):
        alone = len(columns) == 1
        _measure(values.offsets, values.text, values.valid, values.skipped, alone, more, sizes[1:])
    places = np.cumsum(sizes)
    output = np.empty(places[-1], np.uint8)
    for values, more in zip(columns, added, strict=True):
        after = _NEWLINE if values is columns[-1] else _COMMA
        _fill(values.offsets, values.text, more, after, places, output)
    return output.data


@kernel
def _measure(
    offsets: Int32s, text: Bytes, valid: Bytes, skipped: int, alone: bool, added: Int32s, sizes: Int64s
) -> None:
    """How many bytes quoting adds to each value; and to the size of each row what the value takes there,
    with the comma or newline after it."""
    for row in range(len(offsets) - 1):
        first, end, bit = offsets[row], offsets[row + 1], row + skipped
        if len(valid) and not (valid[bit >> 3] >> (bit & 7)) & 1:
            added[row] = _NULL
            sizes[row] += 1
            continue
        needs = first == end
        if alone and end - first == 2:
            needs = text[first] == _BACKSLASH and text[first + 1] == _DOT
        for place in range(np.uintp(first), np.uintp(end)):
            byte = text[place]
            needs |= (byte == _COMMA) | (byte == _QUOTE) | (byte == _NEWLINE) | (byte == _RETURN)
        more = 0
        if needs:
            more = 2
            for place in range(first, end):
                more += text[place] == _QUOTE
        added[row] = more
        sizes[row] += end - first + more + 1


@kernel
def _fill(offsets: Int32s, text: Bytes, added: Int32s, after: int, places: Int64s, output: Bytes) -> None:
    """Put each value, and what comes after it, to its row's place, which moves on."""
    for row in range(len(offsets) - 1):
        at, more = np.uintp(places[row]), added[row]
        if more == 0:
            for place in range(np.uintp(offsets[row]), np.uintp(offsets[row + 1])):
                output[at] = text[place]
                at += _ONE
        elif more != _NULL:
            output[at] = _QUOTE
            at += _ONE
            for place in range(np.uintp(offsets[row]), np.uintp(offsets[row + 1])):
                byte = text[place]
                output[at] = byte
                at += _ONE
                if byte == _QUOTE:
                    output[at] = byte
                    at += _ONE
            output[at] = _QUOTE
            at += _ONE
        output[at] = after
        places[row] = at + 1

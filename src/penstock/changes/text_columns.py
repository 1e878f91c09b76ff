"""The text of a column as compiled code reads it, wherever it lies.

A column may be an array of its own, or every n-th value of the rows that a segment holds: those are read
where they are, without picking the column out of them first.

Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changes.columns import RowColumns
from penstock.changes.copy_text import offsets_of
from penstock.model.compiled import Bytes, Int32s, Int64s, kernel

Array = TypeVar("Array", bound=npt.NDArray[Any])

NULL = -1
"""In the place of a row, or of where a text starts."""
_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True)
class TextColumn:
    """The value of row r is the bytes starts[r] up to stops[r] of `text`; it is NULL where starts[r] is."""

    text: Bytes
    starts: Int64s
    stops: Int64s
    size: int
    """Of all values together."""

    @classmethod
    def of(cls, values: pa.StringArray) -> TextColumn:
        """Return an array as a column."""
        return TextRows(values, np.arange(len(values))).column(0)

    @classmethod
    def decimal(cls, numbers: Int64s) -> TextColumn:
        """Return numbers that are not below 0, in decimal."""
        text = np.empty(len(numbers) * _MOST_DIGITS, np.uint8)
        starts, stops = np.empty((2, len(numbers)), np.int64)
        size = _write_decimals(frozen(numbers), text, starts, stops)
        return cls(frozen(text), starts, stops, size)

    def with_first(self, value: bytes) -> TextColumn:
        """Return the column with another value in its first row."""
        text = frozen(np.concatenate([self.text, bytes_of(value)]))
        starts, stops = self.starts.copy(), self.stops.copy()
        size = self.size - int(stops[0] - starts[0]) + len(value)
        starts[0], stops[0] = len(self.text), len(text)
        return TextColumn(text, starts, stops, size)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> str:
        """Return one value that is not NULL."""
        return self.text[self.starts[row] : self.stops[row]].tobytes().decode()

    def array(self, for_null: str) -> pa.StringArray:
        """Return the column by itself, with a text in the place of NULL."""
        instead = bytes_of(for_null.encode())
        offsets = np.zeros(len(self) + 1, np.int32)
        text = np.empty(self.size + len(self) * len(instead), np.uint8)
        _pick(self.text, self.starts, self.stops, instead, offsets, text)
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(offsets), pa.py_buffer(text))


class TextRows:
    """Rows of text as Arrow lays them out: value p is the bytes offsets[p] up to offsets[p + 1]."""

    def __init__(self, values: pa.StringArray, first: Int64s) -> None:
        """Take values one behind the other, and per row the place of its first one, or NULL."""
        bits, _, text = values.buffers()
        self._offsets = frozen(offsets_of(values))
        self._text = bytes_of(text)
        self._valid = bytes_of(bits if values.null_count else None)
        self._skipped: int = values.offset
        self._first = first

    @classmethod
    def of(cls, rows: RowColumns) -> TextRows:
        return cls(rows.values, np.where(rows.valid, rows.first, NULL))

    def column(self, place: int) -> TextColumn:
        """Return a column; where a row is not there, it is NULL."""
        starts, stops = np.empty((2, len(self._first)), np.int64)
        places = self._first, place
        size = _find(self._offsets, self._valid, self._skipped, *places, starts, stops)
        return TextColumn(self._text, starts, stops, size)


def bytes_of(buffer: pa.Buffer | bytes | None) -> Bytes:
    return frozen(np.frombuffer(buffer if buffer is not None else b"", np.uint8))


def frozen(array: Array) -> Array:
    """Return the array as one that is not written to, as Arrow's are: Numba compiles anew for others."""
    view = array.view()
    view.flags.writeable = False
    return view


@kernel
def _find(
    offsets: Int32s, valid: Bytes, skipped: int, first: Int64s, place: int, starts: Int64s, stops: Int64s
) -> int:
    """Note where the values of a column are; returns how many bytes they have. `valid` has a bit for each
    value, from the lowest of the first byte on, after `skipped` others; it is empty if there is no NULL."""
    size = 0
    for row in range(len(first)):
        at = first[row] + place
        bit = at + skipped
        if first[row] < 0 or (len(valid) and not (valid[bit >> 3] >> (bit & 7)) & 1):
            starts[row] = stops[row] = NULL
        else:
            starts[row], stops[row] = offsets[at], offsets[at + 1]
            size += stops[row] - starts[row]
    return size


@kernel
def _pick(
    source: Bytes, starts: Int64s, stops: Int64s, for_null: Bytes, offsets: Int32s, text: Bytes
) -> None:
    at = np.uintp(0)
    for row in range(len(starts)):
        if starts[row] < 0:
            for place in range(len(for_null)):
                text[at] = for_null[place]
                at += np.uintp(1)
        else:
            for place in range(np.uintp(starts[row]), np.uintp(stops[row])):
                text[at] = source[place]
                at += np.uintp(1)
        offsets[row + 1] = at


@kernel
def _write_decimals(numbers: Int64s, text: Bytes, starts: Int64s, stops: Int64s) -> int:
    """Write each to the end of a place of its own; returns how many bytes they have."""
    size = 0
    for row in range(len(numbers)):
        stops[row] = at = (row + 1) * _MOST_DIGITS
        left = numbers[row]
        while True:
            at -= 1
            text[at] = 48 + left % 10
            left //= 10
            if left == 0:
                break
        starts[row] = at
        size += stops[row] - at
    return size

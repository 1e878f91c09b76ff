"""Rows put together from constants and encoded values: `{"id":` 1 `,"name":` "a" `}`.

A part is some bytes that are the same in every row, and behind them a value that is another in each; where
it is absent there is neither. Compiled code goes through the parts twice: first it adds up how long each row
becomes, then it puts the parts to their places, one part of all rows after the other. A caller gives it as
many rows as stay in the processor's cache together.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.changes.encoded import EncodedColumn
from penstock.changes.text_columns import TextColumn, bytes_of, frozen
from penstock.model.compiled import Bytes, Int64s, kernel

Mask = npt.NDArray[np.bool_]

_ABSENT = -1
_NOTHING = bytes_of(None)
_ONE = np.uintp(1)
"""Places are unsigned in the inner loops: Numba then need not ask whether one counts from the end."""


class _Part(NamedTuple):
    prefix: Bytes
    data: Bytes
    starts: Int64s
    """Per row, where the value begins in `data`, or _ABSENT."""
    ends: Int64s


class Joiner:
    """Takes the parts of a number of rows, in order. `where` says in which rows a part is; None: in all."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[_Part] = []
        self._constant = b""
        """What comes next in every row."""

    def __len__(self) -> int:
        return self._rows

    def constant(self, constant: bytes, where: Mask | None = None) -> None:
        """Add the same to each row."""
        if where is None or not constant:
            self._constant += constant
        else:
            nowhere = np.zeros(self._rows, np.int64)
            self._add(constant, _NOTHING, nowhere, nowhere, where)

    def values(self, values: EncodedColumn, where: Mask | None = None, prefix: bytes = b"") -> None:
        """Add to each row its value."""
        self._add(prefix, values.data, values.offsets[:-1], values.offsets[1:], where)

    def texts(self, texts: TextColumn) -> None:
        """Add to each row its text, which is there for every row, as it stands."""
        self._add(b"", texts.text, texts.starts, texts.stops, None)

    def choice(self, options: Sequence[bytes], numbers: Int64s, where: Mask | None = None) -> None:
        """Add to each row one of a few constants."""
        column = column_of(options)
        self._add(b"", column.data, column.offsets[numbers], column.offsets[numbers + 1], where)

    def _add(self, prefix: bytes, data: Bytes, starts: Int64s, ends: Int64s, where: Mask | None) -> None:
        if where is None:
            prefix, self._constant = self._constant + prefix, b""
        else:
            self._end_constant()
            starts = np.where(where, starts, _ABSENT)
        self._parts.append(_Part(bytes_of(prefix), frozen(data), starts, ends))

    def _end_constant(self) -> None:
        if self._constant:
            nowhere = np.zeros(self._rows, np.int64)
            self._add(b"", _NOTHING, nowhere, nowhere, None)

    def joined(self) -> EncodedColumn:
        """Return the rows."""
        self._end_constant()
        offsets = np.zeros(self._rows + 1, np.int64)
        for part in self._parts:
            _measure(len(part.prefix), part.starts, part.ends, offsets[1:])
        np.cumsum(offsets, out=offsets)
        places, output = offsets[:-1].copy(), np.empty(offsets[-1], np.uint8)
        for part in self._parts:
            _fill(part.prefix, part.data, part.starts, part.ends, places, output)
        return EncodedColumn(offsets, output)


def column_of(values: Sequence[bytes]) -> EncodedColumn:
    """Return values that are encoded already as a column."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return EncodedColumn(offsets, bytes_of(b"".join(values)))


@kernel
def _measure(prefix: int, starts: Int64s, ends: Int64s, sizes: Int64s) -> None:
    for row in range(len(sizes)):
        if starts[row] >= 0:
            sizes[row] += prefix + ends[row] - starts[row]


@kernel
def _fill(prefix: Bytes, data: Bytes, starts: Int64s, ends: Int64s, places: Int64s, output: Bytes) -> None:
    """Put the part to each row's place, which moves on."""
    for row in range(len(places)):
        if starts[row] >= 0:
            at = np.uintp(places[row])
            for place in range(np.uintp(len(prefix))):
                output[at] = prefix[place]
                at += _ONE
            for place in range(np.uintp(starts[row]), np.uintp(ends[row])):
                output[at] = data[place]
                at += _ONE
            places[row] = at

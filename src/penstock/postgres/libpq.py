"""libpq's way of handing out messages, called from compiled code.

Replication and COPY send a message for each row. It costs libpq 0.1 µs; the same call from Python costs ten
times that, and an object for the garbage collector to look at. psycopg offers the pointer of its connection
for this purpose.

A message too large to lie beside others is handed out in the memory that libpq gave it: of a row of 100 MB
every copy counts.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from psycopg import pq

from penstock.model.compiled import Bytes, Int64s, kernel
from penstock.postgres.library import libpq

USUAL_BYTES = 64 << 10
"""Room for a message that begins before that."""
SHORTEST = 1
"""Bytes of a row of one empty column; no message is shorter."""
LOST = -3
"""Said of a connection that broke; to libpq -2 is an error, -1 the end, and 0 that there is no more yet."""


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """For kernels: pointers are integers there."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    llvm.add_symbol(name, address)
    return types.ExternalFunction(name, result(*arguments))


_libpq = libpq()
_get_copy_data = _function(_libpq, "PQgetCopyData", types.int32, types.intp, types.intp, types.int32)
_consume_input = _function(_libpq, "PQconsumeInput", types.int32, types.intp)
_free = _function(_libpq, "PQfreemem", types.void, types.intp)
_copy = _function(ctypes.CDLL(None), "memcpy", types.intp, types.intp, types.intp, types.uintp)


@kernel
def _take(
    connection: int, enough: int, waits: bool, holder: Int64s, data: Bytes, ends: Int64s, count: int
) -> tuple[int, int]:
    """Put messages behind those that came before, until there are enough bytes or as many as there are `ends`
    for, waiting for them or not; returns what libpq said last and how many there are. A message that there is
    no room for is left in `holder`, its length is what libpq said."""
    size = ends[count - 1] if count else 0
    length = 1
    while length > 0 and size < enough and count < len(ends):
        length = _get_copy_data(connection, holder.ctypes.data, 0 if waits else 1)
        if length == 0:
            if not _consume_input(connection):
                return LOST, count
            length = _get_copy_data(connection, holder.ctypes.data, 1)
        if length <= 0 or size + length > len(data):
            break
        _copy(data.ctypes.data + size, holder[0], length)
        _free(holder[0])
        holder[0] = 0
        size += length
        ends[count] = size
        count += 1
    return length, count


def warm_up() -> None:
    """Load the kernel, or compile it: libpq has no messages of no connection."""
    _take(0, 1, False, np.zeros(1, np.int64), np.empty(1, np.uint8), np.empty(1, np.int64), 0)


class Inbox:
    """Gathers the messages of a connection, about so many bytes at once, and no more messages than `most`.
    One that there is no room for beside the others comes after them, by itself."""

    def __init__(
        self, connection: pq.abc.PGconn, enough: int, *, waits: bool, most: int | None = None
    ) -> None:
        self._connection: int = connection.pgconn_ptr  # type: ignore[attr-defined]
        self._enough = enough
        self._waits = waits
        self._holder = np.zeros(1, np.int64)
        self._data = np.empty(enough + USUAL_BYTES, np.uint8)
        self._ends = np.empty(min(enough // SHORTEST + 1, most or enough), np.int64)
        self._gathered = 0
        self._large: memoryview | None = None
        self.ended = self.lost = False
        """The server has sent all; the connection broke."""

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self._gathered + (self._large is not None)

    def take(self) -> bool:
        """Take what has arrived, or (if it waits) until there is enough; whether there is room left."""
        if self._large is not None:
            return False
        length, self._gathered = _take(
            self._connection, self._enough, self._waits, self._holder, self._data, self._ends, self._gathered
        )
        if self._holder[0]:
            self._large = _owned(int(self._holder[0]), length)
            self._holder[0] = 0
        self.ended, self.lost = length < 0, length == LOST
        return length == 0

    def empty(self) -> tuple[bytes | memoryview, Int64s]:
        """Return what was gathered since the last time: messages laid end to end, and where each ends. A
        large one comes with the next call, by itself."""
        if not self._gathered and self._large is not None:
            large, self._large = self._large, None
            return large, np.array([len(large)], np.int64)
        ends = self._ends[: self._gathered].copy()
        self._gathered = 0
        return self._data[: ends[-1] if len(ends) else 0].tobytes(), ends


def _owned(address: int, size: int) -> memoryview:
    """A message in libpq's memory, which is freed when nobody looks at it any more."""
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libpq.PQfreemem, ctypes.c_void_p(address)).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8).data.toreadonly()

"""Rows of a run on their way to Arrow: what the kernels note, and the buffers that they fill.

No value is copied but once, from the run into the buffer that Arrow then owns. A row that Python makes (a
truncate, a logical message) is written down as the tuple that an insert of the same values would carry,
behind the run's own bytes: to `kernels.fill` it is a row like any other.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture import kernels
from penstock.capture.runs import MessageRun
from penstock.model import Lsn
from penstock.model.compiled import Bytes, Int8s, Int32s, Int64s
from penstock.model.text import is_text
from penstock.spool.segment import EMPTY, SCHEMA, Op


class Fixed(NamedTuple):
    """The columns of the rows that have a fixed width; `body` is where a row's first tuple stands."""

    table_id: Int64s
    version: Int32s
    op: Int8s
    commit_lsn: Int64s
    lsn: Int64s
    seq: Int64s
    xid: Int64s
    committed_at: Int64s
    before_kind: Int8s
    body: Int64s


class Side(NamedTuple):
    """The buffers of one `list<string>` column: row r holds the items lists[r] up to lists[r + 1], item i
    the bytes offsets[i] up to offsets[i + 1], and is NULL where bit i of valid is 0."""

    lists: Int32s
    offsets: Int32s
    valid: Bytes
    text: Bytes


class Row(NamedTuple):
    """A row that Python makes."""

    op: Op
    table_id: int
    version: int
    lsn: Lsn
    values: tuple[str, ...]


class RowBuffers:
    """Rows gathered from a run: the fixed columns as they are, the values still where they stand."""

    def __init__(self, run: MessageRun) -> None:
        self.run = run
        self.data, self.ends = arrays(run)
        self.fixed = _fixed(len(run.ends))
        self.totals = np.zeros(kernels.TOTALS, np.int64)
        self._tail = bytearray()
        """The tuples of the rows that Python made: they stand behind the run's bytes."""
        self._own: bytearray | None = None
        """The run's bytes with NULs in them, if there are values that are no text."""

    @property
    def holds_news(self) -> bool:
        return bool(self.totals[kernels.ROWS] or self.totals[kernels.MOVED])

    def make_room(self, more: int) -> None:
        """Make room for more rows. A message makes one at most; only a truncate makes one for each table."""
        needed = int(self.totals[kernels.ROWS]) + more
        if needed > len(self.fixed.op):
            self.fixed = Fixed._make(np.resize(column, 2 * needed) for column in self.fixed)

    def add(self, row: Row, transaction: Int64s) -> None:
        at = int(self.totals[kernels.ROWS])
        self.make_room(1)
        commit_lsn, seq, xid, committed_at = transaction[
            [kernels.COMMIT_LSN, kernels.SEQ, kernels.XID, kernels.COMMITTED_AT]
        ]
        body = len(self.data) + len(self._tail)
        values = (
            row.table_id,
            row.version,
            row.op,
            commit_lsn,
            row.lsn.value,
            seq,
            xid,
            committed_at,
            0,
            body,
        )
        for column, value in zip(self.fixed._asdict().values(), values, strict=True):
            column[at] = value
        texts = [value.encode() for value in row.values]
        self._tail += struct.pack("!ch", b"N", len(texts))
        for text in texts:
            self._tail += struct.pack("!ci", b"t", len(text)) + text
        self.totals[kernels.ROWS] += 1
        self.totals[kernels.AFTER_ITEMS] += len(texts)
        self.totals[kernels.AFTER_BYTES] += sum(map(len, texts))

    def blank(self, index: int, prefix: int) -> None:
        """Put NULs in the place of a row's values that are not UTF-8. No text of PostgreSQL's has any:
        whoever reads the value knows that it is not what the source has. The message has been measured."""
        if self._own is None:
            self._own = bytearray(self.run.data)
            self.data = np.frombuffer(self._own, np.uint8).view()
            self.data.flags.writeable = False
        at, end = int(self.ends[index - 1]) if index else 0, int(self.ends[index])
        at += kernels.HEADER + 1 + prefix + 4
        while at < end:
            (columns,) = struct.unpack_from("!h", self._own, at + 1)
            at += 3
            for _ in range(columns):
                kind = self._own[at : at + 1]
                at += 1
                if kind == b"t":
                    (length,) = struct.unpack_from("!i", self._own, at)
                    at += 4
                    if not is_text(self._own[at : at + length]):
                        self._own[at : at + length] = bytes(length)
                    at += length

    def to_arrow(self) -> pa.RecordBatch:
        rows = int(self.totals[kernels.ROWS])
        if rows == 0:
            return EMPTY
        data = self.data
        if self._tail:
            data = np.frombuffer(data.tobytes() + self._tail, np.uint8)
        before = _side(rows, self.totals[kernels.BEFORE_ITEMS : kernels.BEFORE_BYTES + 1])
        after = _side(rows, self.totals[kernels.AFTER_ITEMS : kernels.AFTER_BYTES + 1])
        kept_lists = np.zeros(rows + 1, np.int32)
        unchanged = np.empty(self.totals[kernels.UNCHANGED], np.int32)
        kernels.fill(data, rows, self.fixed, before, after, kept_lists, unchanged)
        fixed = Fixed._make(column[:rows] for column in self.fixed)
        kinds = zip(SCHEMA.types, fixed._asdict().values(), strict=False)
        places = pa.Array.from_buffers(pa.int32(), len(unchanged), [None, pa.py_buffer(unchanged)])
        columns = [
            *(_column(kind, column) for kind, column in islice(kinds, len(SCHEMA) - 3)),
            _list(before.lists, fixed.before_kind != 0, _strings(before)),
            _list(after.lists, fixed.op != Op.DELETE, _strings(after)),
            _list(kept_lists, np.diff(kept_lists) > 0, places),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def arrays(run: MessageRun) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """A run for the kernels. Both read-only whatever they were: another kind of array is another
    signature, which Numba would compile anew."""
    ends = np.ascontiguousarray(run.ends, np.int64).view()
    ends.flags.writeable = False
    return np.frombuffer(run.data, np.uint8), ends


def _fixed(rows: int) -> Fixed:
    wide = [np.empty(rows, np.int64) for _ in range(7)]
    return Fixed(
        table_id=wide[0],
        version=np.empty(rows, np.int32),
        op=np.empty(rows, np.int8),
        commit_lsn=wide[1],
        lsn=wide[2],
        seq=wide[3],
        xid=wide[4],
        committed_at=wide[5],
        before_kind=np.empty(rows, np.int8),
        body=wide[6],
    )


def _side(rows: int, counted: Int64s) -> Side:
    items, nulls, size = counted
    return Side(
        lists=np.zeros(rows + 1, np.int32),
        offsets=np.zeros(items + 1, np.int32),
        valid=np.full((items + 7) // 8 if nulls else 0, 0xFF, np.uint8),
        text=np.empty(size, np.uint8),
    )


def _column(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _strings(side: Side) -> pa.Array:
    valid = pa.py_buffer(side.valid) if len(side.valid) else None
    buffers = [valid, pa.py_buffer(side.offsets), pa.py_buffer(side.text)]
    return pa.Array.from_buffers(pa.string(), len(side.offsets) - 1, buffers)


def _list(lists: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_], items: pa.Array) -> pa.Array:
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.list_(items.type), len(valid), [bits, pa.py_buffer(lists)], children=[items]
    )

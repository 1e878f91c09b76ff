"""The hot path: Numba kernels over plain arrays that walk messages and lay out Arrow buffers.

`scan` walks the messages of a run once: it checks every bound and every rule, keeps the transaction's
state, and notes for each row its fixed columns and where its values stand. It stops at a message that is
not a row, a begin, a commit or a keepalive (`RARE`), which Python handles before scanning goes on, or at
one that is wrong. What it has counted is what the buffers must hold; `fill` walks the noted rows a second
time and copies the values, without checks since scan has made them. `gather` walks the blocks of streamed
transactions, which are kept as they are.

The plain-Python twin is `reference`; both must come to the same rows or stop at the same message.
Integers are int64 throughout (mixed with uint64, Numba would make floats of them).

A message, and in it a row (the xid only inside streamed transactions):

    w | int64 start | int64 end | int64 time | payload
    k | int64 end of WAL | int64 time | int8 reply wanted

    B | int64 commit LSN | int64 time | uint32 xid
    C | int8 flags (0) | int64 commit LSN | int64 end LSN | int64 time
    I | (xid) | uint32 table | N tuple
    U | (xid) | uint32 table | (K tuple or O tuple) | N tuple
    D | (xid) | uint32 table | K tuple or O tuple

    tuple:  int16 columns, then for each  n  or  u  or  t | int32 length | bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.capture.messages import EPOCH_US, FIRST_TIME_US, LAST_TIME_US
from penstock.model.compiled import Bytes, Int32s, Int64s, kernel

if TYPE_CHECKING:
    from penstock.capture.row_buffers import Fixed, Side

# What scan returns: all done, a message for Python, or what is wrong with the message it stopped at.
DONE, RARE, SHORT, TRAILING, KIND, LSN, TIME, FLAGS = range(8)
NESTED, NOT_BEGUN, OTHER_COMMIT, EARLY_END, OUTSIDE = range(8, 13)
NO_TABLE, WIDTH, NO_TUPLE, VALUE, LENGTH, TEXT = range(13, 19)
# The places in `transaction`: the open transaction, and the position reached.
OPEN, COMMIT_LSN, COMMITTED_AT, XID, SEQ, DROPPED, POSITION, START = range(8)
# The places in `totals`: what has been counted for the batch, and where scan stopped.
ROWS, ENDED, MOVED, NEXT = range(4)
BEFORE_ITEMS, BEFORE_NULLS, BEFORE_BYTES, AFTER_ITEMS, AFTER_NULLS, AFTER_BYTES, UNCHANGED = range(4, 11)
TOTALS = 11

HEADER, KEEPALIVE_SIZE, BEGIN_SIZE, COMMIT_SIZE = 25, 18, 21, 26
_XLOG, _KEEPALIVE = ord("w"), ord("k")
_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = ord("B"), ord("C"), ord("I"), ord("U"), ord("D")
_TYPE, _TRUNCATE, _MESSAGE = ord("Y"), ord("T"), ord("M")
_KEY, _OLD, _NEW = ord("K"), ord("O"), ord("N")
_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")


@kernel
def _byte(data: Bytes, at: int) -> int:
    return np.int64(data[at])  # type: ignore[return-value]


@kernel
def _int16(data: Bytes, at: int) -> int:
    return ((_byte(data, at) ^ 0x80) - 0x80) << 8 | _byte(data, at + 1)


@kernel
def _uint32(data: Bytes, at: int) -> int:
    high = _byte(data, at) << 24 | _byte(data, at + 1) << 16
    return high | _byte(data, at + 2) << 8 | _byte(data, at + 3)


@kernel
def _int64(data: Bytes, at: int) -> int:
    return _uint32(data, at) << 32 | _uint32(data, at + 4)


@kernel
def _measure(data: Bytes, at: int, end: int, columns: int, new: bool) -> tuple[int, int, int, int]:
    """Check a tuple; returns where it ends (or minus what is wrong), its bytes, NULLs and unchanged."""
    text = nulls = unchanged = 0
    if end - at < 2:
        return -SHORT, text, nulls, unchanged
    if _int16(data, at) != columns:
        return -WIDTH, text, nulls, unchanged
    at += 2
    for _ in range(columns):
        if at >= end:
            return -SHORT, text, nulls, unchanged
        kind = data[at]
        at += 1
        if kind == _TEXT:
            if end - at < 4:
                return -SHORT, text, nulls, unchanged
            length = _uint32(data, at)
            at += 4
            if length > 0x7FFFFFFF:
                return -LENGTH, text, nulls, unchanged
            if length > end - at:
                return -SHORT, text, nulls, unchanged
            text += length
            at += length
        elif kind == _NULL:
            nulls += 1
        elif kind == _UNCHANGED and new:
            nulls += 1
            unchanged += 1
        else:
            return -VALUE, text, nulls, unchanged
    return at, text, nulls, unchanged


@kernel
def _ascii(data: Bytes, at: int, end: int) -> bool:
    high = np.uint8(0)
    for place in range(at, end):
        high |= data[place]
    return high < 0x80  # type: ignore[return-value]


@kernel
def _utf8(data: Bytes, at: int, end: int) -> bool:
    """Whether it is UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
    while at < end:
        lead = data[at]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if more > end - at:
            return False
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if data[at] < low or data[at] > high:
            return False
        for place in range(at + 1, at + more):
            if data[place] & 0xC0 != 0x80:
                return False
        at += more
    return True


@kernel
def _utf8_tuples(data: Bytes, at: int, end: int) -> bool:
    """Whether all values of the tuples up to the end are UTF-8; the tuples have been measured."""
    while at < end:
        columns = _int16(data, at + 1)
        at += 3
        for _ in range(columns):
            kind = data[at]
            at += 1
            if kind == _TEXT:
                length = _uint32(data, at)
                at += 4
                if not _utf8(data, at, at + length):
                    return False
                at += length
    return True


@kernel
def _measure_row(
    data: Bytes, at: int, end: int, kind: int, columns: int
) -> tuple[int, int, int, int, int, int, int]:
    """Check the tuples of a row message; returns what is wrong or DONE, before_kind, the old tuple's bytes
    and NULLs, the new tuple's bytes, NULLs and unchanged."""
    body = at
    before_kind = old_bytes = old_nulls = new_bytes = new_nulls = kept = 0
    code = DONE
    if kind != _INSERT and (data[at] == _KEY or data[at] == _OLD):
        before_kind = 1 if data[at] == _KEY else 2
        at, old_bytes, old_nulls, _ = _measure(data, at + 1, end, columns, False)
    if at >= 0 and kind != _DELETE:
        if at >= end or data[at] != _NEW:
            code = NO_TUPLE
        else:
            at, new_bytes, new_nulls, kept = _measure(data, at + 1, end, columns, True)
    if at < 0:
        code = -at
    elif code == DONE:
        if kind == _DELETE and before_kind == 0:
            code = NO_TUPLE
        elif at != end:
            code = TRAILING
        elif not _ascii(data, body, end) and not _utf8_tuples(data, body, end):
            code = TEXT
    return code, before_kind, old_bytes, old_nulls, new_bytes, new_nulls, kept


@kernel
def _begin(data: Bytes, at: int, end: int, transaction: Int64s) -> int:
    if transaction[OPEN]:
        return NESTED
    if end - at != BEGIN_SIZE:
        return SHORT if end - at < BEGIN_SIZE else TRAILING
    commit_lsn, time = _int64(data, at + 1), _int64(data, at + 9)
    if commit_lsn < 0:
        return LSN
    if time < FIRST_TIME_US or time > LAST_TIME_US:
        return TIME
    transaction[OPEN], transaction[SEQ], transaction[DROPPED] = 1, 0, commit_lsn < transaction[START]
    transaction[COMMIT_LSN], transaction[COMMITTED_AT] = commit_lsn, time + EPOCH_US
    transaction[XID] = _uint32(data, at + 17)
    return DONE


@kernel
def _commit(data: Bytes, at: int, end: int, transaction: Int64s, totals: Int64s) -> int:
    if not transaction[OPEN]:
        return NOT_BEGUN
    if end - at != COMMIT_SIZE:
        return SHORT if end - at < COMMIT_SIZE else TRAILING
    if data[at + 1] != 0:
        return FLAGS
    commit_lsn, end_lsn, time = _int64(data, at + 2), _int64(data, at + 10), _int64(data, at + 18)
    if commit_lsn != transaction[COMMIT_LSN]:
        return OTHER_COMMIT
    if end_lsn <= commit_lsn:
        return EARLY_END
    if time < FIRST_TIME_US or time > LAST_TIME_US:
        return TIME
    transaction[OPEN] = 0
    _reach(end_lsn, transaction, totals)
    return DONE


@kernel
def _reach(position: int, transaction: Int64s, totals: Int64s) -> None:
    """Outside of transactions: all rows so far have ended, and the position moves on, never back."""
    transaction[POSITION] = max(transaction[POSITION], position)
    totals[MOVED], totals[ENDED] = 1, totals[ROWS]


@kernel
def _check_header(data: Bytes, at: int, end: int) -> int:
    if end <= at or end > len(data):
        return SHORT
    if data[at] == _KEEPALIVE:
        if end - at != KEEPALIVE_SIZE:
            return SHORT
    elif data[at] != _XLOG:
        return KIND
    elif end - at <= HEADER:
        return SHORT
    elif data[at + 9] >= 0x80:
        return LSN
    return DONE if data[at + 1] < 0x80 else LSN


@kernel
def scan(
    data: Bytes, ends: Int64s, prefix: int, lookup: Int64s, transaction: Int64s, fixed: Fixed, totals: Int64s
) -> int:
    """Check and count the messages from `totals[NEXT]` on; returns DONE, RARE or what is wrong, with
    `totals[NEXT]` at the message where it stopped. `prefix` is 4 inside streamed transactions, where an
    xid follows the kind of each message and none begins or commits; else 0."""
    code, index, place, tables = DONE, totals[NEXT], 0, lookup.shape[1]
    at = ends[index - 1] if index > 0 else 0
    while index < len(ends):
        end = ends[index]
        code = _check_header(data, at, end)
        if code != DONE:
            break
        lsn, kind = _int64(data, at + 1), data[at + HEADER] if data[at] == _XLOG else data[at]
        if kind in (_INSERT, _UPDATE, _DELETE):
            at += HEADER + 1 + prefix
            if not transaction[OPEN] or end - at < 5:
                code = OUTSIDE if not transaction[OPEN] else SHORT
                break
            table_id = _uint32(data, at)
            at += 4
            if place >= tables or lookup[0, place] != table_id:
                place = int(np.searchsorted(lookup[0], table_id))
                if place == tables or lookup[0, place] != table_id:
                    code = NO_TABLE
                    break
            columns = lookup[2, place]
            code, before_kind, old_bytes, old_nulls, new_bytes, new_nulls, unchanged = _measure_row(
                data, at, end, kind, columns
            )
            if code == DONE and not transaction[DROPPED]:
                row = totals[ROWS]
                fixed.table_id[row] = table_id
                fixed.version[row] = lookup[1, place]
                fixed.op[row] = kind
                fixed.commit_lsn[row] = transaction[COMMIT_LSN]
                fixed.lsn[row] = lsn
                fixed.seq[row] = transaction[SEQ]
                fixed.xid[row] = transaction[XID]
                fixed.committed_at[row] = transaction[COMMITTED_AT]
                fixed.before_kind[row] = before_kind
                fixed.body[row] = at
                totals[ROWS] += 1
                totals[BEFORE_ITEMS] += columns if before_kind else 0
                totals[BEFORE_NULLS] += old_nulls
                totals[BEFORE_BYTES] += old_bytes
                totals[AFTER_ITEMS] += columns if kind != _DELETE else 0
                totals[AFTER_NULLS] += new_nulls
                totals[AFTER_BYTES] += new_bytes
                totals[UNCHANGED] += unchanged
            transaction[SEQ] += 1
        elif kind == _KEEPALIVE and data[at] == _KEEPALIVE:
            if not transaction[OPEN]:
                _reach(lsn, transaction, totals)
        elif kind == _BEGIN and prefix == 0:
            code = _begin(data, at + HEADER, end, transaction)
        elif kind == _COMMIT and prefix == 0:
            code = _commit(data, at + HEADER, end, transaction, totals)
        else:
            code = RARE
        if code != DONE:
            break
        at = end
        index += 1
    totals[NEXT] = index
    return code


@kernel
def _copy(data: Bytes, at: int, side: Side, item: int, unchanged: Int32s, kept: int) -> tuple[int, int, int]:
    """Copy a tuple to the items from `item` on; returns where it ends, the next item and unchanged."""
    columns = _int16(data, at)
    at += 2
    to = 0 + side.offsets[item]
    for column in range(columns):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            length = _uint32(data, at)
            at += 4
            for place in range(length):
                side.text[to + place] = data[at + place]
            at += length
            to += length
        else:
            side.valid[item >> 3] &= ~(1 << (item & 7))
            if kind == _UNCHANGED:
                unchanged[kept] = column
                kept += 1
        item += 1
        side.offsets[item] = to
    return at, item, kept


@kernel
def fill(
    data: Bytes, rows: int, fixed: Fixed, before: Side, after: Side, kept_lists: Int32s, unchanged: Int32s
) -> None:
    """Copy the values of the rows that scan has noted into buffers of the size that it has counted.

    The offsets begin with a 0, the bits of `valid` with 1; `kept_lists` are the lists of `unchanged`.
    """
    old = new = kept = 0
    for row in range(rows):
        at = fixed.body[row]
        if fixed.before_kind[row] != 0:
            at, old, _ = _copy(data, at + 1, before, old, unchanged, kept)
        if fixed.op[row] != _DELETE:
            at, new, kept = _copy(data, at + 1, after, new, unchanged, kept)
        before.lists[row + 1] = old
        after.lists[row + 1] = new
        kept_lists[row + 1] = kept


@kernel
def gather(data: Bytes, ends: Int64s, index: int, xids: Int64s) -> int:
    """Note the xids of the messages of a streamed block from `index` on, -1 for a keepalive; returns where
    it stopped: behind the last message, or at one that Python must look at."""
    at = ends[index - 1] if index > 0 else 0
    while index < len(ends):
        end = ends[index]
        if end <= at or end > len(data) or _check_header(data, at, end) != DONE:
            break
        if data[at] == _KEEPALIVE:
            xids[index] = -1
        else:
            kind = data[at + HEADER]
            if end - at < HEADER + 5 or kind not in (_INSERT, _UPDATE, _DELETE, _TYPE, _TRUNCATE, _MESSAGE):
                break
            xids[index] = _uint32(data, at + HEADER + 1)
        at = end
        index += 1
    return index

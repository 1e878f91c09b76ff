"""MessagePack, written by compiled code: single values, and columns of them.

    nil c0, false c2, true c3
    integer   the shortest: 00-7f, cc-cf + 1, 2, 4, 8 bytes; below 0: e0-ff, d0-d3 + 1, 2, 4, 8 bytes
    float     cb + 8 bytes
    str       a0-bf, d9-db + length in 1, 2, 4 bytes; then UTF-8
    bin       c4-c6 + length in 1, 2, 4 bytes
    array     90-9f, dc-dd + length in 2, 4 bytes
    map       80-8f, de-df + length in 2, 4 bytes

Numbers have their highest byte first. `put_…` write a value and return the place behind it; `pack_…` write a
column one behind the other and note where each value ends. They return the row of a value that is none of the
type, or `FINE`. Room for all of it is there: what each needs at most is said where it is called.

Runs on executors.
"""

from __future__ import annotations

import numpy as np

from penstock.model.compiled import Bytes, Int64s, kernel

FINE = -1

LONGEST_NUMBER = 9
LONGEST_HEADER = 5
NIL, FALSE, TRUE = 0xC0, 0xC2, 0xC3
_UINT8, _UINT16, _UINT32, _UINT64 = 0xCC, 0xCD, 0xCE, 0xCF
_INT8, _INT16, _INT32, _INT64 = 0xD0, 0xD1, 0xD2, 0xD3
_FLOAT64, _SHORT_STR, _STR8, _BIN8 = 0xCB, 0xA0, 0xD9, 0xC4
SHORT_ARRAY, ARRAY16 = 0x90, 0xDC
SHORT_MAP, MAP16 = 0x80, 0xDE

_MINUS, _ZERO, _T, _F, _BACKSLASH, _X = b"-0tf\\x"
_MOST_DIGITS = 19
_NO_DIGIT = 255
_HEX = np.full(256, _NO_DIGIT, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def map_header(count: int) -> bytes:
    return _header(count, SHORT_MAP, MAP16)


def array_header(count: int) -> bytes:
    return _header(count, SHORT_ARRAY, ARRAY16)


def _header(count: int, short: int, mark: int) -> bytes:
    output = np.empty(LONGEST_HEADER, np.uint8)
    return output[: put_container(output, 0, count, short, mark)].tobytes()


@kernel
def _put_marked(output: Bytes, at: int, mark: int, bits: int, size: int) -> int:
    """A byte that says what comes, and the lowest `size` bytes of a number."""
    output[at] = mark
    for place in range(size):
        output[at + size - place] = (bits >> (8 * place)) & 0xFF
    return at + size + 1


@kernel
def put_container(output: Bytes, at: int, count: int, short: int, mark: int) -> int:
    """What comes before the members of an array or a map."""
    if count < 16:
        output[at] = short | count
        return at + 1
    if count < 1 << 16:
        return _put_marked(output, at, mark, count, 2)
    return _put_marked(output, at, mark + 1, count, 4)


@kernel
def _put_length(output: Bytes, at: int, length: int, mark: int) -> int:
    if length < 1 << 8:
        return _put_marked(output, at, mark, length, 1)
    if length < 1 << 16:
        return _put_marked(output, at, mark + 1, length, 2)
    return _put_marked(output, at, mark + 2, length, 4)


@kernel
def put_str_header(output: Bytes, at: int, length: int) -> int:
    if length < 32:
        output[at] = _SHORT_STR | length
        return at + 1
    return _put_length(output, at, length, _STR8)


@kernel
def put_float(output: Bytes, at: int, bits: int) -> int:
    """A double, given as the integer that has its bits."""
    return _put_marked(output, at, _FLOAT64, bits, 8)


@kernel
def put_unsigned(output: Bytes, at: int, bits: int) -> int:
    """An integer that is not below 0; from 2**63 on it is given as the negative one that has its bits."""
    if bits < 0:
        return _put_marked(output, at, _UINT64, bits, 8)
    if bits < 0x80:
        output[at] = bits
        return at + 1
    if bits < 1 << 8:
        return _put_marked(output, at, _UINT8, bits, 1)
    if bits < 1 << 16:
        return _put_marked(output, at, _UINT16, bits, 2)
    if bits < 1 << 32:
        return _put_marked(output, at, _UINT32, bits, 4)
    return _put_marked(output, at, _UINT64, bits, 8)


@kernel
def put_integer(output: Bytes, at: int, value: int) -> int:
    if value >= 0:
        return put_unsigned(output, at, value)
    if value >= -32:
        output[at] = value & 0xFF
        return at + 1
    if value >= -(1 << 7):
        return _put_marked(output, at, _INT8, value, 1)
    if value >= -(1 << 15):
        return _put_marked(output, at, _INT16, value, 2)
    if value >= -(1 << 31):
        return _put_marked(output, at, _INT32, value, 4)
    return _put_marked(output, at, _INT64, value, 8)


@kernel
def pack_strings(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: the text, and LONGEST_HEADER for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            output[at] = NIL
            at += 1
        else:
            at = put_str_header(output, at, end - first)
            to = np.uintp(at)
            for source in range(np.uintp(first), np.uintp(end)):
                output[to] = text[source]
                to += np.uintp(1)
            at += end - first
        ends[row] = at
    return FINE


@kernel
def pack_integers(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: LONGEST_NUMBER for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            output[at] = NIL
            at += 1
        else:
            is_integer, value = _integer(text, first, end)
            if not is_integer:
                return row
            at = put_integer(output, at, value)
        ends[row] = at
    return FINE


@kernel
def _integer(text: Bytes, first: int, end: int) -> tuple[bool, int]:
    """Whether the text is an integer of 64 bits, and which. It is counted below 0, where there is one
    more."""
    negative = first < end and text[first] == _MINUS
    first += negative
    value = 0
    for place in range(first, end):
        digit = text[place] - _ZERO
        if digit < 0 or digit > 9:
            return False, 0
        value = value * 10 - digit
    if first == end or end - first > _MOST_DIGITS or value > 0:  # above 0: it did not fit
        return False, 0
    if negative:
        return True, value
    return -value >= 0, -value


@kernel
def pack_floats(bits: Int64s, starts: Int64s, output: Bytes, ends: Int64s) -> int:
    """Doubles, given as the integers that have their bits; `starts` says which are NULL. Room:
    LONGEST_NUMBER for each."""
    at = 0
    for row in range(len(ends)):
        if starts[row] < 0:
            output[at] = NIL
            at += 1
        else:
            at = put_float(output, at, bits[row])
        ends[row] = at
    return FINE


@kernel
def pack_booleans(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: a byte for each."""
    for row in range(len(ends)):
        output[row] = NIL
        ends[row] = row + 1
        if starts[row] >= 0:
            letter = text[starts[row]] if stops[row] == starts[row] + 1 else 0
            if letter != _T and letter != _F:
                return row
            output[row] = TRUE if letter == _T else FALSE
    return FINE


@kernel
def pack_bytes(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    r"""`\x00ff` as two bytes. Room: the text, and LONGEST_HEADER for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            output[at] = NIL
            at += 1
        else:
            size = (end - first) // 2 - 1
            if not _is_hex(text, first, end):
                return row
            at = _put_length(output, at, size, _BIN8)
            for number in range(size):
                high = _HEX[text[first + 2 + 2 * number]]
                output[at] = high << 4 | _HEX[text[first + 3 + 2 * number]]
                at += 1
        ends[row] = at
    return FINE


@kernel
def _is_hex(text: Bytes, first: int, end: int) -> bool:
    if end - first < 2 or (end - first) % 2 or text[first] != _BACKSLASH or text[first + 1] != _X:
        return False
    worst = np.uint8(0)
    for place in range(first + 2, end):
        worst = max(worst, _HEX[text[place]])
    return worst != _NO_DIGIT  # type: ignore[no-any-return]

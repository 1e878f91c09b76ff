r"""JSON, written by compiled code: columns of values.

A string is escaped where it has to be: quotes, backslashes, and what is below a space; all other characters
stand as they are, in UTF-8. Integers, floats and documents stand as PostgreSQL wrote them, which is JSON;
only what JSON has no number for is a string: "NaN", "Infinity", "-Infinity".

`write_…` write a column one behind the other and note where each value ends. They return the row of a value
that is none of the type, or `FINE`.

Runs on executors.
"""

from __future__ import annotations

import numpy as np

from penstock.changes.message_pack import FINE
from penstock.model.compiled import Bytes, Int64s, kernel

LONGEST_WORD = 5
"""`false`; room for `null` and a pair of quotes is less."""
_QUOTE, _BACKSLASH, _SPACE, _ZERO, _NINE, _MINUS, _U, _T, _F = b'"\\ 09-utf'
_NULL = np.frombuffer(b"null", np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)

_LETTERS = np.zeros(256, np.uint8)
"""What stands behind the backslash; `u`: four digits more."""
_LETTERS[:_SPACE] = _U
for _escape, _letter in {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.items():
    _LETTERS[ord(_escape)] = ord(_letter)
_ADDED = np.where(_LETTERS == 0, 0, np.where(_LETTERS == _U, 5, 1))
"""Bytes that escaping adds."""


@kernel
def measure_strings(text: Bytes, starts: Int64s, stops: Int64s, added: Int64s) -> int:
    """How many bytes escaping adds to each value; returns how many all of them become, with their quotes."""
    size = 0
    for row in range(len(added)):
        first, end = starts[row], stops[row]
        if first < 0:
            size += len(_NULL)
            continue
        needs = False
        for source in range(np.uintp(first), np.uintp(end)):
            byte = text[source]
            needs |= (byte < _SPACE) | (byte == _QUOTE) | (byte == _BACKSLASH)
        added[row] = 0
        if needs:
            for source in range(first, end):
                added[row] += _ADDED[text[source]]
        size += end - first + added[row] + 2
    return size


@kernel
def write_strings(
    text: Bytes, starts: Int64s, stops: Int64s, added: Int64s, output: Bytes, ends: Int64s
) -> int:
    """Room: what `measure_strings` returned."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            at = _put(output, at, _NULL)
        else:
            output[at] = _QUOTE
            if added[row]:
                at = _put_escaped(output, at + 1, text, first, end)
            else:
                at = _copy(output, at + 1, text, first, end)
            output[at] = _QUOTE
            at += 1
        ends[row] = at
    return FINE


@kernel
def _put_escaped(output: Bytes, at: int, text: Bytes, first: int, end: int) -> int:
    for place in range(first, end):
        byte = text[place]
        letter = _LETTERS[byte]
        if letter == 0:
            output[at] = byte
            at += 1
        else:
            output[at] = _BACKSLASH
            output[at + 1] = letter
            at += 2
            if letter == _U:
                output[at] = output[at + 1] = _ZERO
                output[at + 2] = _DIGITS[byte >> 4]
                output[at + 3] = _DIGITS[byte & 15]
                at += 4
    return at


@kernel
def _put(output: Bytes, at: int, word: Bytes) -> int:
    for place in range(len(word)):
        output[at + place] = word[place]
    return at + len(word)


@kernel
def _copy(output: Bytes, at: int, text: Bytes, first: int, end: int) -> int:
    to = np.uintp(at)
    for place in range(np.uintp(first), np.uintp(end)):
        output[to] = text[place]
        to += np.uintp(1)
    return at + end - first


@kernel
def write_as_it_stands(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: the text, and LONGEST_WORD for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        at = _put(output, at, _NULL) if first < 0 else _copy(output, at, text, first, end)
        ends[row] = at
    return FINE


@kernel
def write_floats(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: the text, and LONGEST_WORD for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            at = _put(output, at, _NULL)
        else:
            if first == end:
                return row
            is_number = _ZERO <= text[end - 1] <= _NINE
            if not is_number:
                output[at] = _QUOTE
                at += 1
            at = _copy(output, at, text, first, end)
            if not is_number:
                output[at] = _QUOTE
                at += 1
        ends[row] = at
    return FINE


@kernel
def write_booleans(text: Bytes, starts: Int64s, stops: Int64s, output: Bytes, ends: Int64s) -> int:
    """Room: LONGEST_WORD for each."""
    at = 0
    for row in range(len(ends)):
        first, end = starts[row], stops[row]
        if first < 0:
            at = _put(output, at, _NULL)
        else:
            letter = text[first] if end == first + 1 else 0
            if letter != _T and letter != _F:
                return row
            at = _put(output, at, _TRUE if letter == _T else _FALSE)
        ends[row] = at
    return FINE

r"""JSON documents as MessagePack: their values, not their text.

A number is one where a binary number holds it exactly (`json_numbers`), and otherwise a string with the
digits as they stand. Strings come without their escapes; only one that holds half of a surrogate pair, which
`json` allows and UTF-8 does not, comes as it stands between its quotes. Names that a `json` document repeats
are repeated.

Compiled code reads the documents twice: first it checks them and counts the members of each array and map, as
MessagePack wants the count first, then it writes.

Runs on executors.
"""

from __future__ import annotations

import numpy as np

from penstock.changes import json_grammar as grammar
from penstock.changes.json_numbers import FLOAT, HARD, UNSIGNED, Mask, doubles, number
from penstock.changes.message_pack import (
    ARRAY16,
    FALSE,
    FINE,
    MAP16,
    NIL,
    SHORT_ARRAY,
    SHORT_MAP,
    TRUE,
    put_container,
    put_float,
    put_integer,
    put_str_header,
    put_unsigned,
)
from penstock.changes.text_columns import TextColumn
from penstock.model.compiled import Bytes, Int64s, kernel

_BACKSLASH, _U = b"\\u"
_MEANINGS = np.zeros(256, np.int64)
for _letter, _meaning in {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}.items():
    _MEANINGS[ord(_letter)] = ord(_meaning)
_DIGITS = np.zeros(256, np.int64)
for _digit in "0123456789abcdefABCDEF":
    _DIGITS[ord(_digit)] = int(_digit, 16)
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000
"""Where the halves of surrogate pairs are."""
_HALF = -1
"""In place of a character, or of a string's length."""


def first_wrong(column: TextColumn) -> int:
    """Return the row of the first text that is no document, or FINE."""
    return grammar.read(column, grammar.Notes.of(column))[0]


def pack_documents(column: TextColumn, ends: Int64s) -> tuple[int, Bytes]:
    """Return the row of the first text that is no document, or FINE; and the documents one behind the
    other."""
    notes = grammar.Notes.of(column)
    wrong, size, hard = grammar.read(column, notes)
    if wrong != FINE:
        return wrong, np.empty(0, np.uint8)
    bits, exact = _nearest(column, notes, hard)
    output = np.empty(size, np.uint8)
    texts, results = (column.text, column.starts, column.stops), (output, ends)
    return FINE, output[: _pack(*texts, notes.counts, bits, exact, *results)]


def _nearest(column: TextColumn, notes: grammar.Notes, hard: int) -> tuple[Int64s, Mask]:
    """Return what the hard numbers are as doubles."""
    if not hard:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    starts, stops = notes.hard_starts[:hard], notes.hard_stops[:hard]
    return doubles(TextColumn(column.text, starts, stops, int((stops - starts).sum())).array("0"))


@kernel
def _pack(
    text: Bytes,
    starts: Int64s,
    stops: Int64s,
    counts: Int64s,
    bits: Int64s,
    exact: Mask,
    output: Bytes,
    ends: Int64s,
) -> int:
    at = opened = hard = 0
    for row in range(len(ends)):
        if starts[row] < 0:
            output[at] = NIL
            ends[row] = at = at + 1
            continue
        kind, first, stop, here = grammar.token(text, starts[row], stops[row])
        while kind != grammar.END:
            if kind == grammar.STRING:
                at = _put_string(output, at, text, first, stop)
            elif kind == grammar.NUMBER:
                at, is_hard = _put_number(output, at, text, first, stop)
                if is_hard:
                    at = _put_hard(output, at, text, first, stop, bits[hard], exact[hard])
                    hard += 1
            elif kind <= grammar.OPEN_MAP:
                at = _put_other(output, at, kind, counts, opened)
                opened += kind >= grammar.OPEN_ARRAY
            kind, first, stop, here = grammar.token(text, here, stops[row])
        ends[row] = at
    return at


@kernel
def _put_other(output: Bytes, at: int, kind: int, counts: Int64s, opened: int) -> int:
    if kind == grammar.OPEN_ARRAY:
        return put_container(output, at, counts[opened], SHORT_ARRAY, ARRAY16)
    if kind == grammar.OPEN_MAP:
        return put_container(output, at, counts[opened], SHORT_MAP, MAP16)
    output[at] = TRUE if kind == grammar.TRUE else FALSE if kind == grammar.FALSE else NIL
    return at + 1


@kernel
def _put_number(output: Bytes, at: int, text: Bytes, first: int, stop: int) -> tuple[int, bool]:
    """Write a number, unless it is hard."""
    kind, bits = number(text, first, stop)
    if kind == UNSIGNED:
        return put_unsigned(output, at, bits), False
    if kind == FLOAT:
        return put_float(output, at, bits), False
    if kind == HARD:
        return at, True
    return put_integer(output, at, bits), False


@kernel
def _put_hard(output: Bytes, at: int, text: Bytes, first: int, stop: int, bits: int, exact: bool) -> int:
    if exact:
        return put_float(output, at, bits)
    return _put_as_it_stands(output, at, text, first, stop)


@kernel
def _put_as_it_stands(output: Bytes, at: int, text: Bytes, first: int, stop: int) -> int:
    at = put_str_header(output, at, stop - first)
    for place in range(first, stop):
        output[at + place - first] = text[place]
    return at + stop - first


@kernel
def _put_string(output: Bytes, at: int, text: Bytes, first: int, stop: int) -> int:
    length = _unescaped_length(text, first, stop)
    if length == stop - first or length == _HALF:
        return _put_as_it_stands(output, at, text, first, stop)
    at = put_str_header(output, at, length)
    while first < stop:
        if text[first] == _BACKSLASH:
            character, first = _character(text, first, stop)
            at = _put_utf8(output, at, character)
        else:
            output[at] = text[first]
            at += 1
            first += 1
    return at


@kernel
def _unescaped_length(text: Bytes, first: int, stop: int) -> int:
    length = 0
    while first < stop:
        if text[first] == _BACKSLASH:
            character, first = _character(text, first, stop)
            if character == _HALF:
                return _HALF
            length += 1 + (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)
        else:
            length += 1
            first += 1
    return length


@kernel
def _character(text: Bytes, at: int, stop: int) -> tuple[int, int]:
    """The character that an escape means, and where to go on."""
    if text[at + 1] != _U:
        return _MEANINGS[text[at + 1]], at + 2
    code = _code(text, at + 2)
    if code < _HIGH or code >= _AFTER_LOW:
        return code, at + 6
    if code < _LOW and stop - at >= 12 and text[at + 6] == _BACKSLASH and text[at + 7] == _U:
        low = _code(text, at + 8)
        if _LOW <= low < _AFTER_LOW:
            return 0x10000 + ((code - _HIGH) << 10) + low - _LOW, at + 12
    return _HALF, at + 6


@kernel
def _code(text: Bytes, at: int) -> int:
    high = _DIGITS[text[at]] << 12 | _DIGITS[text[at + 1]] << 8
    return high | _DIGITS[text[at + 2]] << 4 | _DIGITS[text[at + 3]]  # type: ignore[no-any-return]


@kernel
def _put_utf8(output: Bytes, at: int, character: int) -> int:
    if character < 0x80:
        output[at] = character
        return at + 1
    if character < 0x800:
        output[at] = 0xC0 | character >> 6
        at += 1
    else:
        if character < 0x10000:
            output[at] = 0xE0 | character >> 12
        else:
            output[at] = 0xF0 | character >> 18
            at += 1
            output[at] = 0x80 | character >> 12 & 0x3F
        output[at + 1] = 0x80 | character >> 6 & 0x3F
        at += 2
    output[at] = 0x80 | character & 0x3F
    return at + 1

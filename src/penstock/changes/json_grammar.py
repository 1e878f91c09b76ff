"""JSON documents, read by compiled code: checked against the grammar, and measured.

A document is a row of tokens. What may come next depends on what it is within, so the containers that are
open are kept as a chain, each with the one around it: however deep the nesting, nothing here calls itself.

PostgreSQL only has documents that are right; a rule of `set` can make others, and nobody is given those.

Runs on executors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.changes.json_numbers import HARD, is_number, number
from penstock.changes.message_pack import FINE
from penstock.changes.text_columns import TextColumn
from penstock.model.compiled import Bytes, Int64s, kernel

STRING, NUMBER, TRUE, FALSE, NULL, OPEN_ARRAY, OPEN_MAP = range(7)
CLOSE_ARRAY, CLOSE_MAP, COMMA, COLON, END, WRONG, _SPACE = range(7, 14)
"""Kinds of tokens. Values, or their beginnings, come before CLOSE_ARRAY."""

_QUOTE, _BACKSLASH, _U, _BRACKET, _BRACE = b'"\\u[{'
_FIRST_PLAIN = 0x20
_WORDS = np.frombuffer(b"truefalsenull", np.uint8)
_WORD_PLACES = np.array([0, 4, 9, 13])

_KINDS = np.full(256, WRONG, np.int64)
for _letters, _kind in {
    **{b'"': STRING, b"-0123456789": NUMBER, b"t": TRUE, b"f": FALSE, b"n": NULL, b"[": OPEN_ARRAY},
    **{b"{": OPEN_MAP, b"]": CLOSE_ARRAY, b"}": CLOSE_MAP, b",": COMMA, b":": COLON, b" \t\n\r": _SPACE},
}.items():
    _KINDS[list(_letters)] = _kind

_IN_NUMBERS = np.zeros(256, np.bool_)
_IN_NUMBERS[list(b"+-.eE0123456789")] = True
_ESCAPES = np.zeros(256, np.bool_)
_ESCAPES[list(b'"\\/bfnrtu')] = True
_HEX = np.zeros(256, np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True

# What may come next: a value; a value or the array's end; a name or the map's end; a name; a colon; a comma
# or the end of the array, or of the map; nothing more.
_VALUE, _FIRST_VALUE, _FIRST_NAME, _NAME, _COLON, _IN_ARRAY, _IN_MAP, _DONE = range(8)
# What to do with a token: it has no place there; count it as a value; as a name; open a container; close
# one; go on.
_REFUSE, _SCALAR, _NAMED, _OPEN, _CLOSE, _GO_ON = range(6)
_ACTIONS = np.full((8, 13), _REFUSE, np.int64)
_ACTIONS[_VALUE, : NULL + 1] = _ACTIONS[_FIRST_VALUE, : NULL + 1] = _SCALAR
_ACTIONS[_VALUE, OPEN_ARRAY : OPEN_MAP + 1] = _ACTIONS[_FIRST_VALUE, OPEN_ARRAY : OPEN_MAP + 1] = _OPEN
_ACTIONS[_FIRST_NAME, STRING] = _ACTIONS[_NAME, STRING] = _NAMED
_ACTIONS[_FIRST_VALUE, CLOSE_ARRAY] = _ACTIONS[_IN_ARRAY, CLOSE_ARRAY] = _CLOSE
_ACTIONS[_FIRST_NAME, CLOSE_MAP] = _ACTIONS[_IN_MAP, CLOSE_MAP] = _CLOSE
_ACTIONS[_COLON, COLON] = _ACTIONS[_IN_ARRAY, COMMA] = _ACTIONS[_IN_MAP, COMMA] = _GO_ON

_OUTSIDE = -1
_SHORTEST_HARD = len("1e23")


class Notes(NamedTuple):
    """What is noted of documents while they are read: of their containers, in the order in which they open,
    and of their hard numbers."""

    counts: Int64s
    """Elements, or pairs."""
    around: Int64s
    """Which container each is in; -1: none."""
    is_map: Bytes
    hard_starts: Int64s
    hard_stops: Int64s
    """Where in the text."""

    @classmethod
    def of(cls, column: TextColumn) -> Notes:
        """Return room for the notes of a column; memory that is not written to takes none."""
        most = _openings(column.text, column.starts, column.stops)
        most_hard = column.size // _SHORTEST_HARD
        places = np.empty(most_hard, np.int64), np.empty(most_hard, np.int64)
        return cls(np.zeros(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint8), *places)


@kernel
def _openings(text: Bytes, starts: Int64s, stops: Int64s) -> int:
    """How many containers there are at most: a bracket may also be part of a string."""
    count = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            for at in range(np.uintp(starts[row]), np.uintp(stops[row])):
                count += (text[at] == _BRACKET) | (text[at] == _BRACE)
    return count


@kernel
def token(text: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The next token: its kind, where it begins and stops (a string inside its quotes), and where to go
    on."""
    while at < end and _KINDS[text[at]] == _SPACE:
        at += 1
    if at == end:
        return END, at, at, at
    kind = _KINDS[text[at]]
    if kind == STRING:
        stop = _string_end(text, at + 1, end)
        return (STRING if stop < end else WRONG), at + 1, stop, stop + 1
    if kind == NUMBER:
        stop = at + 1
        while stop < end and _IN_NUMBERS[text[stop]]:
            stop += 1
        return kind, at, stop, stop
    if TRUE <= kind <= NULL:
        stop = at + _WORD_PLACES[kind - TRUE + 1] - _WORD_PLACES[kind - TRUE]
        return (kind if _is_word(text, at, end, kind) else WRONG), at, stop, stop
    return kind, at, at + 1, at + 1


@kernel
def _is_word(text: Bytes, at: int, end: int, kind: int) -> bool:
    first, stop = _WORD_PLACES[kind - TRUE], _WORD_PLACES[kind - TRUE + 1]
    matching = 0
    for place in range(first, min(stop, first + end - at)):
        matching += text[at + place - first] == _WORDS[place]
    return bool(matching == stop - first)


@kernel
def _string_end(text: Bytes, at: int, end: int) -> int:
    """Where the closing quote of a string is; the text's end if there is none, or it is no string."""
    while at < end and text[at] != _QUOTE:
        if text[at] < _FIRST_PLAIN:
            return end
        if text[at] == _BACKSLASH:
            if end - at < 2 or not _ESCAPES[text[at + 1]]:
                return end
            at += 1
            if text[at] == _U:
                if end - at < 5 or not _is_code(text, at + 1):
                    return end
                at += 4
        at += 1
    return at


@kernel
def _is_code(text: Bytes, at: int) -> bool:
    return _HEX[text[at]] and _HEX[text[at + 1]] and _HEX[text[at + 2]] and _HEX[text[at + 3]]  # type: ignore[no-any-return]


def read(column: TextColumn, notes: Notes) -> tuple[int, int, int]:
    """Take notes of documents. Returns the row of the first that is none, or FINE; how many bytes all of them
    need in MessagePack at most; and how many of their numbers are hard."""
    return _read(column.text, column.starts, column.stops, *notes)


@kernel
def _read(
    text: Bytes,
    starts: Int64s,
    stops: Int64s,
    counts: Int64s,
    around: Int64s,
    is_map: Bytes,
    hard_starts: Int64s,
    hard_stops: Int64s,
) -> tuple[int, int, int]:
    size = opened = hard = 0
    for row in range(len(starts)):
        size += 1
        if starts[row] < 0:
            continue
        current, state = _OUTSIDE, _VALUE
        kind, first, stop, at = token(text, starts[row], stops[row])
        while kind < END:
            action = _ACTIONS[state, kind]
            if action == _REFUSE or (kind == NUMBER and not is_number(text, first, stop)):
                return row, 0, 0
            size += (kind < CLOSE_ARRAY) * (stop - first + 9)  # a number, or a header and perhaps the text
            if kind == NUMBER and number(text, first, stop)[0] == HARD:
                hard_starts[hard], hard_stops[hard] = first, stop
                hard += 1
            if action == _CLOSE:
                current = around[current]
            elif action != _GO_ON and (action == _NAMED or (current != _OUTSIDE and not is_map[current])):
                counts[current] += 1  # a name, or a value of an array: that of a map came with its name
            if action == _OPEN:
                around[opened], is_map[opened] = current, kind == OPEN_MAP
                current, opened = opened, opened + 1
            state = _next(state, action, current, is_map)
            kind, first, stop, at = token(text, at, stops[row])
        if kind != END or state != _DONE:
            return row, 0, 0
    return FINE, size, hard


@kernel
def _next(state: int, action: int, current: int, is_map: Bytes) -> int:
    """What may come after a token."""
    if action == _GO_ON:
        return _NAME if state == _IN_MAP else _VALUE
    if action == _NAMED:
        return _COLON
    if current == _OUTSIDE:
        return _DONE
    if action == _OPEN:
        return _FIRST_NAME if is_map[current] else _FIRST_VALUE
    return _IN_MAP if is_map[current] else _IN_ARRAY

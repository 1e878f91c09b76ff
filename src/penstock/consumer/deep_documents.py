"""Documents that are nested deeper than the libraries follow, a thousand levels or so: read and written
without recursion, and slower. Who has none never comes here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgpack

_SEPARATORS = re.compile(r"[ \t\n\r,:]*")


def read_json(text: str, decoder: json.JSONDecoder) -> Any:
    """Return the value; `decoder` reads what is neither array nor object. Where commas and colons are is not
    looked at. Raises ValueError."""
    root: list[Any] = []
    around: list[Any] = [root]
    name: str | None = None
    at = _after_separators(text, 0)
    while at < len(text):
        mark, inner = text[at], around[-1]
        if mark in "]}":
            if len(around) == 1 or mark != ("}" if isinstance(inner, dict) else "]"):
                raise ValueError(f"unexpected {mark}")
            around.pop()
            at += 1
        elif isinstance(inner, dict) and name is None:
            name, at = decoder.raw_decode(text, at)
        else:
            value: Any = {} if mark == "{" else []
            if mark in "[{":
                around.append(value)
                at += 1
            else:
                value, at = decoder.raw_decode(text, at)
            _put(inner, name, value)
            name = None
        at = _after_separators(text, at)
    if len(around) > 1 or len(root) != 1:
        raise ValueError("unexpected end")
    return root[0]


def read_message_pack(data: bytes) -> Any:
    """Return the value. Raises ValueError, or UnpackException."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    root: list[Any] = []
    around: list[tuple[Any, int]] = []
    """The arrays and maps that are open, and how many values each still lacks."""
    inner, left = root, 1
    while True:
        while not left:
            if not around:
                return root[0]
            inner, left = around.pop()
        if unpacker.tell() >= len(data):
            raise ValueError("unexpected end")
        name = unpacker.unpack() if isinstance(inner, dict) else ""
        mark = data[unpacker.tell()] if unpacker.tell() < len(data) else 0
        left -= 1
        if 0x80 <= mark <= 0x8F or mark in (0xDE, 0xDF):
            opened: Any = {}
            count = unpacker.read_map_header()
        elif 0x90 <= mark <= 0x9F or mark in (0xDC, 0xDD):
            opened = []
            count = unpacker.read_array_header()
        else:
            _put(inner, name, unpacker.unpack())
            continue
        _put(inner, name, opened)
        around.append((inner, left))
        inner, left = opened, count


def written_json(value: Any, encoder: json.JSONEncoder) -> str:
    """Return the value as text, members sorted; `encoder` writes what is neither array nor object."""
    parts: list[str] = []
    ahead: list[tuple[str, Any]] = [("", value)]
    """What is still to be written, from the end: a text, and a value behind it, unless that is `...`."""
    while ahead:
        text, value = ahead.pop()
        parts.append(text)
        if isinstance(value, dict):
            members = [(f"{encoder.encode(name)}:", value[name]) for name in sorted(value)]
        elif isinstance(value, list):
            members = [("", each) for each in value]
        else:
            parts += [] if value is ... else [encoder.encode(value)]
            continue
        begin, end = "{}" if isinstance(value, dict) else "[]"
        parts.append(begin)
        ahead.append((end, ...))
        ahead += [(f"{',' if place else ''}{name}", each) for place, (name, each) in enumerate(members)][::-1]
    return "".join(parts)


def _put(container: Any, name: Any, value: Any) -> None:
    if isinstance(container, dict):
        container[name] = value
    else:
        container.append(value)


def _after_separators(text: str, at: int) -> int:
    match = _SEPARATORS.match(text, at)
    return match.end() if match else at

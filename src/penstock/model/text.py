"""Text for people: what a terminal would obey is shown, not sent, and an error tells no value of a row.

Names and values come from strangers. A table may be called so that its name moves the cursor, clears the
screen or looks like a line of our log; an error of a library may quote the row it choked on.
"""

from __future__ import annotations

import json
import re
import sqlite3
import traceback
from typing import Any

from penstock.model.errors import PenstockError
from penstock.model.secrets import without_secrets

# Control characters (C0, DEL, C1), what turns the direction of writing, other ends of lines, half characters.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_QUOTES_NO_VALUE = (
    OSError, MemoryError, ImportError, TypeError, AttributeError, NameError, ArithmeticError, RecursionError,
    sqlite3.Error,
)  # fmt: skip
"""Errors whose text is of names and places."""


def is_text(value: bytes | bytearray) -> bool:
    """Whether it is UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def printable(text: str) -> str:
    """In one line, with what a terminal would obey written as Python would write it: `\\n`, `\\x1b`."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Text of several lines; those after the first are indented, so that none can pass for one of ours."""
    return "\n  ".join(map(printable, text.split("\n")))


def as_json(document: Any) -> str:
    """One line of JSON, readable in any language, with nothing that a terminal would obey."""
    text = json.dumps(document, ensure_ascii=False)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def told(error: BaseException) -> str:
    """What may be told of an error that nobody foresaw: its kind; its text where that cannot quote a row."""
    if isinstance(error, PenstockError):
        return str(error)
    kind = type(error).__name__
    if isinstance(error, UnicodeError) or not isinstance(error, _QUOTES_NO_VALUE):
        state = getattr(error, "sqlstate", None)
        return f"{kind} ({state})" if isinstance(state, str) else kind
    return without_secrets(f"{kind}: {error}")


def plain_traceback(error: BaseException) -> str:
    """Where it came from, line by line of the code, without variables; of its text only what may be told."""
    lines: list[str] = []
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    for one in reversed(chain):
        lines += traceback.format_tb(one.__traceback__)
        lines.append(f"{type(one).__module__}.{told(one)}\n")
    return printable_lines("  " + "".join(lines).rstrip("\n"))

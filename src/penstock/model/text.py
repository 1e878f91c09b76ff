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
    """Return the text in one line, with what a terminal would obey as Python writes it: `\\n`, `\\x1b`."""
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return text of several lines; all but the first are indented, so that none can pass for one of ours."""
    return "\n  ".join(map(printable, text.split("\n")))


def as_json(document: Any) -> str:
    """Return one line of JSON, readable in any language, with nothing that a terminal would obey."""
    text = json.dumps(document, ensure_ascii=False)
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def error_summary(error: BaseException) -> str:
    """Return what may be told of an unforeseen error: its kind; its text where that cannot quote a row."""
    if isinstance(error, PenstockError):
        return str(error)
    kind = type(error).__name__
    if isinstance(error, UnicodeError) or not isinstance(error, _QUOTES_NO_VALUE):
        state = getattr(error, "sqlstate", None)
        return f"{kind} ({state})" if isinstance(state, str) else kind
    return without_secrets(f"{kind}: {error}")


def plain_traceback(error: BaseException) -> str:
    """Return the traceback, without variables; of the error's text only what may be told."""
    lines: list[str] = []
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    for link in reversed(chain):
        lines += traceback.format_tb(link.__traceback__)
        lines.append(f"{type(link).__module__}.{error_summary(link)}\n")
    return printable_lines("  " + "".join(lines).rstrip("\n"))

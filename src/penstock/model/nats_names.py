"""What tables are called in the key-value bucket of the destination `nats`.

A key may hold fewer characters than a subject does: every byte outside of letters, digits, `_` and `-` is
`=XX`. A dot is never part of a table's key, so that what stands behind one is something else of that table.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")


def bucket_key(token: str) -> str:
    """Return the key of a table, by what it is called in subjects."""
    return _UNSAFE.sub(lambda match: b"=%02X" % match[0][0], token.encode()).decode()


def dictionary_key(token: str, dictionary_id: int) -> str:
    """Return the key of one of the dictionaries with which the table's snapshots are compressed."""
    return f"{bucket_key(token)}.dictionary.{dictionary_id}"

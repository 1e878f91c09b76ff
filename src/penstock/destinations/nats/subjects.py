"""What tables are called in NATS: in subjects, in message ids, in the messages themselves.

A table of `public` goes by its name, another by `{schema}_{table}`, as one token of a subject. Characters
that a token may not hold, or that nobody sees, are percent-encoded, and so is `%`: what is one of two
tables' names can only be the other's because of the `_` between schema and table. `collisions` finds those.

The characters are listed here and not asked of Unicode's tables: those grow with every version of Python,
and a table must not change its subject for it.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable

from penstock.model import TableName, nats_names

CHANGES = "cdc"
"""The first token of the subjects of changes."""
SNAPSHOTS = "init"
"""The first token of the subjects of snapshots."""
REQUESTS = "snapshot.request"
MESSAGES = ("insert", "update", "delete", "truncate", "schema", "reset")
"""The last tokens of the subjects of a table."""
POSITIONS = f"{CHANGES}._position"
"""Where it is kept how far the changes of a source came, in the stream itself."""

LONGEST_PREFIX = 255
"""Bytes of a prefix in a subject: NATS ends the connection of who sends a subject of thousands."""

_SEPARATORS = r"\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_INVISIBLE = r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
_MORE_INVISIBLE = r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff"
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U0010ffff"
_UNSAFE = re.compile(f"[.*>%{_SEPARATORS}{_INVISIBLE}{_MORE_INVISIBLE}{_PRIVATE}]")


def token(table: TableName) -> str:
    """Return what the table is called in NATS."""
    name = _encoded(table.name)
    return name if table.schema == "public" else f"{_encoded(table.schema)}_{name}"


def change_subject(table: TableName, operation: str) -> str:
    """Return the subject of a table's changes of one kind: `insert`, `update`, `delete`, `truncate`."""
    return f"{CHANGES}.{token(table)}.{operation}"


def message_subject(prefix: str) -> str:
    """Return the subject of logical messages with this prefix, which anybody may choose: a long one is cut,
    and told apart from others by its hash."""
    encoded = _encoded(prefix) or "%"
    if len(encoded.encode()) > LONGEST_PREFIX:
        encoded = f"%{hashlib.sha256(prefix.encode()).hexdigest()[:32]}"
    return f"{CHANGES}.message.{encoded}"


def position_subject(pipeline: str, source: str, table: int | None = None) -> str:
    """Return where it is kept how far a source's stream came, or one of its tables by itself."""
    return f"{POSITIONS}.{_encoded(pipeline)}.{_encoded(source)}" + ("" if table is None else f".{table}")


def position_subjects(pipeline: str, sources: Iterable[str]) -> list[str]:
    """Return subjects such as all positions of a pipeline have."""
    return [position_subject(pipeline, source, table) for source in sources for table in (None, 0)]


def is_of(subject: str, patterns: Iterable[str]) -> bool:
    """Whether a stream with these subjects, which may have wildcards, takes messages of this one."""
    return any(_fits(subject.split("."), pattern.split(".")) for pattern in patterns)


def _fits(tokens: list[str], pattern: list[str]) -> bool:
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        tokens = tokens[: len(pattern)] if len(tokens) > len(pattern) else []
    return len(tokens) == len(pattern) and all(
        wanted in ("*", token) for token, wanted in zip(tokens, pattern, strict=True)
    )


def bucket_key(table: TableName) -> str:
    """Return the key of a table in a bucket, which takes fewer characters than a subject."""
    return nats_names.bucket_key(token(table))


def collisions(tables: Iterable[TableName]) -> list[list[TableName]]:
    """Return the groups of tables that would be called the same."""
    by_token: dict[str, set[TableName]] = defaultdict(set)
    for table in tables:
        by_token[token(table)].add(table)
    return [sorted(group) for _, group in sorted(by_token.items()) if len(group) > 1]


def _encoded(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)

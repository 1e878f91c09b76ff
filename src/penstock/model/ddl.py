"""Schema changes as the source records them, and the markers of reloads among them.

A marker is a comment on a table, `CDC_RELOAD: {"action": "EXPORT_START", "export_id": "…"}`: it stands in the
stream where it was set. `EXPORT_START` asks for a full copy; `EXPORT_END` says that it is there. Whoever
makes the copy himself says so with `"external": true`, and, in END, by `"snapshot"` (`pg_current_snapshot()`
of the transaction that read the table) which changes are in it.

Whoever owns a table may put any comment on it, so a marker is read as the words of a stranger.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.model.lsn import Lsn
from penstock.model.schema import TableId
from penstock.model.visibility import Visibility

START, END = "EXPORT_START", "EXPORT_END"
LONGEST_MARKER = 64 << 10
"""Characters: a snapshot names every transaction that runs."""
LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class DdlEvent:
    lsn: Lsn
    """Where its transaction committed."""
    at: datetime
    tag: str
    table: TableId | None
    """The table that it concerns, if it is one."""
    command: str
    comment: str | None = None
    """Of COMMENT ON TABLE: the comment."""


@dataclass(frozen=True, slots=True)
class Marker:
    lsn: Lsn
    table: TableId
    action: str
    export_id: uuid.UUID
    external: bool = False
    snapshot: str | None = None

    @classmethod
    def of(cls, event: DdlEvent, prefix: str) -> Marker | RefusedMarker | None:
        """Return the event as a marker, if it is one, or why it cannot be followed."""
        if event.table is None or event.comment is None or not event.comment.startswith(prefix):
            return None
        text = event.comment.removeprefix(prefix)
        try:
            return _read(event.lsn, event.table, text)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, _Wrong) else "it is not JSON"
            return RefusedMarker(event.lsn, event.table, text_id(f"{event.lsn}/{text}", event.table), reason)


@dataclass(frozen=True, slots=True)
class RefusedMarker:
    """A comment that begins as a marker does and is none."""

    lsn: Lsn
    table: TableId
    id: uuid.UUID
    """The same whenever it is read."""
    reason: str


class _Wrong(ValueError):
    """What is wrong with a marker, in words of ours: nothing of it is repeated."""


def _read(lsn: Lsn, table: TableId, text: str) -> Marker:
    if len(text) > LONGEST_MARKER:
        raise _Wrong(f"it has more than {LONGEST_MARKER} characters")
    document = json.loads(text, object_pairs_hook=_flat, parse_constant=_no_constant)
    if not isinstance(document, dict):
        raise _Wrong("it is no JSON object")
    for key, value in document.items():
        if isinstance(value, dict | list):
            raise _Wrong(f"a value of `{key[:40]}` that holds others is not expected")
    if document.get("action") not in (START, END):
        raise _Wrong(f"`action` is neither {START} nor {END}")
    id_text, external = document.get("export_id"), document.get("external", False)
    snapshot = document.get("snapshot")
    if not isinstance(id_text, str) or not 0 < len(id_text) <= LONGEST_ID:
        raise _Wrong(f"`export_id` is not a text of at most {LONGEST_ID} characters")
    if not isinstance(external, bool):
        raise _Wrong("`external` is neither true nor false")
    if snapshot is not None:
        _check_snapshot(snapshot)
    return Marker(lsn, table, document["action"], export_id(id_text, table), external, snapshot)


def _flat(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise _Wrong("a key stands in it twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise _Wrong(f"{name} is not JSON")


def _check_snapshot(snapshot: object) -> None:
    try:
        Visibility.parse(snapshot if isinstance(snapshot, str) else "")
    except ValueError:
        raise _Wrong("`snapshot` is not what pg_current_snapshot() says") from None


def export_id(text: str, table: TableId) -> uuid.UUID:
    """Return the text as a UUID; for one that is none, always the same UUID for this text and table."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return text_id(text, table)


def text_id(text: str, table: TableId) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{table}/{text}")


def marker_text(prefix: str, action: str, export: uuid.UUID, more: Mapping[str, Any]) -> str:
    return f"{prefix} {json.dumps({'action': action, 'export_id': str(export), **more})}"

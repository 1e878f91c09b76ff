"""Schema changes as the source records them, and the markers of reloads among them.

A marker is a comment on a table, `CDC_RELOAD: {"action": "EXPORT_START", "export_id": "…"}`: it stands in the
stream where it was set. `EXPORT_START` asks for a full copy; `EXPORT_END` says that it is there. Whoever
makes the copy himself says so with `"external": true`, and, in END, by `"snapshot"` (`pg_current_snapshot()`
of the transaction that read the table) which changes are in it.
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

START, END = "EXPORT_START", "EXPORT_END"


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
    def of(cls, event: DdlEvent, prefix: str) -> Marker | None:
        """The marker that an event is, if it is one; ValueError if it is one that cannot be read."""
        if event.table is None or event.comment is None or not event.comment.startswith(prefix):
            return None
        said = json.loads(event.comment.removeprefix(prefix))
        if not isinstance(said, dict) or said.get("action") not in (START, END) or not said.get("export_id"):
            raise ValueError(f"expected an action, {START} or {END}, and an export_id")
        return cls(
            event.lsn,
            event.table,
            said["action"],
            export_id(str(said["export_id"])),
            bool(said.get("external", False)),
            said.get("snapshot"),
        )


def export_id(given: str) -> uuid.UUID:
    """As it is, or, of one that is no UUID, always the same one."""
    try:
        return uuid.UUID(given)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, given)


def marker_text(prefix: str, action: str, export: uuid.UUID, more: Mapping[str, Any]) -> str:
    return f"{prefix} {json.dumps({'action': action, 'export_id': str(export), **more})}"

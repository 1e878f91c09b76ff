"""What the store holds, as values; and how each becomes a row of `tables.py` and comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import PenstockError, TablePaused, from_dict, to_dict
from penstock.model.phases import Phase
from penstock.model.visibility import Visibility


@dataclass(frozen=True, slots=True)
class TableKey:
    source: str
    destination: str
    table: TableId

    def row(self) -> dict[str, Any]:
        return {"source": self.source, "destination": self.destination, "table_id": self.table}


@dataclass(frozen=True, slots=True)
class TableState:
    """A table on its way to one destination."""

    key: TableKey
    name: TableName
    target: TableName
    phase: Phase
    since: datetime
    """When it came into this phase; `enter` sets it."""
    copy: str | None = None
    """The attempt at a copy: another id for each."""
    snapshot: Visibility | None = None
    """What the copy contains."""
    snapshot_lsn: Lsn | None = None
    version: int = 0
    """The version of its schema that the destination has followed."""
    position: Lsn | None = None
    """From where its changes wait; None while it streams."""
    rows: int = 0
    """Copied so far, as `copied_bytes` of `total_bytes`."""
    copied_bytes: int = 0
    total_bytes: int = 0
    error: PenstockError | None = None
    attempts: int = 0
    retry_at: datetime | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else the pipeline wants to know again; in JSON's terms."""

    @property
    def is_paused(self) -> bool:
        """Whether it stopped because somebody wanted that."""
        return isinstance(self.error, TablePaused)

    @property
    def told(self) -> str:
        """Its phase as people are told it: `paused` where it is errored because somebody wanted that."""
        return "paused" if self.is_paused else self.phase.value

    def row(self) -> dict[str, Any]:
        return self.key.row() | {
            "schema_name": self.name.schema,
            "table_name": self.name.name,
            "target_schema": self.target.schema,
            "target_name": self.target.name,
            "phase": self.phase.value,
            "since": self.since.astimezone(UTC),
            "copy": self.copy,
            "snapshot": None if self.snapshot is None else str(self.snapshot),
            "snapshot_lsn": self.snapshot_lsn,
            "version": self.version,
            "position": self.position,
            "rows": self.rows,
            "copied_bytes": self.copied_bytes,
            "total_bytes": self.total_bytes,
            "error": None if self.error is None else to_dict(self.error),
            "attempts": self.attempts,
            "retry_at": None if self.retry_at is None else self.retry_at.astimezone(UTC),
            "detail": json.loads(json.dumps(dict(self.detail))),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> TableState:
        return cls(
            key=TableKey(row["source"], row["destination"], TableId(row["table_id"])),
            name=TableName(row["schema_name"], row["table_name"]),
            target=TableName(row["target_schema"], row["target_name"]),
            phase=Phase(row["phase"]),
            since=row["since"],
            copy=row["copy"],
            snapshot=None if row["snapshot"] is None else Visibility.parse(row["snapshot"]),
            snapshot_lsn=row["snapshot_lsn"],
            version=row["version"],
            position=row["position"],
            rows=row["rows"],
            copied_bytes=row["copied_bytes"],
            total_bytes=row["total_bytes"],
            error=None if row["error"] is None else from_dict(row["error"]),
            attempts=row["attempts"],
            retry_at=row["retry_at"],
            detail=row["detail"],
        )


@dataclass(frozen=True, slots=True)
class PhaseChange:
    phase: Phase | None
    """None: the table was removed."""
    at: datetime
    why: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> PhaseChange:
        return cls(None if row["phase"] is None else Phase(row["phase"]), row["at"], row["why"])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stream of a source came at a destination."""

    position: Lsn
    complete_through: datetime | None
    rows: int
    """Delivered, by all batches together."""
    batches: int
    updated_at: datetime

    def row(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "complete_through": self.complete_through,
            "rows": self.rows,
            "batches": self.batches,
            "updated_at": self.updated_at,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Progress:
        return cls(row["position"], row["complete_through"], row["rows"], row["batches"], row["updated_at"])


@dataclass(frozen=True, slots=True)
class Request:
    """Something that another process asks of the pipeline, running or not."""

    id: int
    kind: str
    what: Mapping[str, Any]
    at: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Request:
        return cls(row["id"], row["kind"], row["what"], row["at"])

"""Schema changes that came in the stream: the rows of `ddl_history` between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog

from penstock.changes.slices import Slice, read_slice
from penstock.model import Lsn, TableId
from penstock.model.ddl import DdlEvent, Marker, RefusedMarker
from penstock.spool.segment import Op

_log = structlog.get_logger("penstock.pipeline")


@dataclass(frozen=True, slots=True)
class DdlEvents:
    """What `ddl_history` recorded between two positions."""

    schema_changes: tuple[DdlEvent, ...]
    """In the order in which they happened; comments, which change no schema, are not among them."""
    markers: tuple[Marker, ...]
    """Requests for reloads."""
    refused: tuple[RefusedMarker, ...]
    """Markers that cannot be followed."""

    @property
    def tables(self) -> list[TableId]:
        return [event.table for event in self.schema_changes if event.table is not None]


def read(parts: Iterable[Slice], start: Lsn, marker_prefix: str | None) -> DdlEvents:
    events = [event for part in parts for event in _events(part) if event.lsn >= start]
    markers = [Marker.of(event, marker_prefix) for event in events] if marker_prefix is not None else []
    refused = [marker for marker in markers if isinstance(marker, RefusedMarker)]
    for marker in refused:
        _log.warning(
            "a reload's marker is refused", table_id=marker.table, lsn=str(marker.lsn), reason=marker.reason
        )
    return DdlEvents(
        tuple(event for event in events if event.comment is None),
        tuple(marker for marker in markers if isinstance(marker, Marker)),
        tuple(refused),
    )


def _events(part: Slice) -> Iterator[DdlEvent]:
    assert part.table is not None
    names = part.table.column_names
    for batch in read_slice(part):
        for row in batch.to_pylist():
            if row["op"] == Op.INSERT:
                recorded = dict(zip(names, row["after"], strict=True))
                table = recorded.get("table_id")
                yield DdlEvent(
                    lsn=Lsn(row["commit_lsn"]),
                    at=datetime.fromisoformat(recorded["event_time"]),
                    tag=recorded.get("ddl_tag") or "",
                    table=TableId(int(table)) if table else None,
                    command=recorded.get("ddl_command") or "",
                    comment=recorded.get("comment"),
                )

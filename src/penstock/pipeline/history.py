"""Schema changes that came in the stream: the rows of `ddl_history` between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import structlog

from penstock.changes.slices import Slice, read_slice
from penstock.model import Lsn, TableId
from penstock.model.ddl import DdlEvent, Marker, RefusedMarker
from penstock.spool.segment import Op

_log = structlog.get_logger("penstock.pipeline")


def events(parts: Iterable[Slice], start: Lsn) -> list[DdlEvent]:
    """In the order in which they happened."""
    return [event for part in parts for event in _events(part) if event.lsn >= start]


def _events(part: Slice) -> Iterator[DdlEvent]:
    assert part.table is not None
    names = part.table.column_names
    for batch in read_slice(part):
        for row in batch.to_pylist():
            if row["op"] == Op.INSERT:
                said = dict(zip(names, row["after"], strict=True))
                table = said.get("table_id")
                yield DdlEvent(
                    lsn=Lsn(row["commit_lsn"]),
                    at=datetime.fromisoformat(said["event_time"]),
                    tag=said.get("ddl_tag") or "",
                    table=TableId(int(table)) if table else None,
                    command=said.get("ddl_command") or "",
                    comment=said.get("comment"),
                )


def markers(found: Sequence[DdlEvent], prefix: str | None) -> tuple[list[Marker], list[RefusedMarker]]:
    """The markers of reloads among them, and those that cannot be followed."""
    read = [Marker.of(event, prefix) for event in found] if prefix is not None else []
    refused = [one for one in read if isinstance(one, RefusedMarker)]
    for one in refused:
        _log.warning("a reload's marker is refused", table_id=one.table, lsn=str(one.lsn), reason=one.reason)
    return [one for one in read if isinstance(one, Marker)], refused

"""What a pipeline is doing, for people and programs, whether it runs or not.

Everything is read from where it is kept: the store, the spool's manifest, the source's slot. A source that
cannot be reached is told as such; the rest is still there.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg

from penstock.capture import state as capture_state
from penstock.capture.launch import spec_of
from penstock.config import Config, SourceConfig
from penstock.config.destinations import DestinationConfig
from penstock.model import Lsn
from penstock.model.errors import PenstockError, SpoolFull, to_dict
from penstock.model.phases import Phase
from penstock.pipeline import consumers
from penstock.pipeline.table_facts import wal_position
from penstock.postgres import selection, slot
from penstock.postgres.connection import connect, explain
from penstock.spool.identity import spool_exists
from penstock.spool.manifest import Manifest
from penstock.spool.writer import captured_by
from penstock.state.store import Store, TableState

Document = dict[str, Any]


def collect(config: Config) -> Document:
    """Return everything there is to know, as JSON would have it. No secret is part of it."""
    with Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=False) as store:
        sources = [_source(config, source) for source in config.sources]
        ends = {source["name"]: source["wal_position"] for source in sources}
        return {
            "pipeline": config.pipeline,
            "at": _time(datetime.now(UTC)),
            "running": store.holder(),
            "sources": sources,
            "destinations": [_destination(store, d, ends) for d in config.destinations],
        }


def _source(config: Config, source: SourceConfig) -> Document:
    spec = spec_of(config, source)
    document: Document = {
        "name": source.name,
        "slot": source.slot_name,
        "publication": source.publication_name,
        "error": None,
        "wal_position": None,
        "slot_state": None,
        "retained_bytes": None,
        "behind_bytes": None,
        "left_out": [],
        "capture": _capture(spec.spool),
        "consumers": _consumers(config, source),
    }
    try:
        with connect(spec.conninfo) as connection:
            document["wal_position"] = str(wal_position(connection))
            state = slot.describe(connection, source.slot_name)
            left_out = selection.left_out(connection, source)
    except (PenstockError, psycopg.Error) as error:
        failure = error if isinstance(error, PenstockError) else explain(error)
        return document | {"error": to_dict(failure.at(source=source.name))}
    document["left_out"] = [{"table": str(name), "reason": why} for name, why in left_out.items()]
    if state is None:
        return document | {"slot_state": "missing"}
    lost = slot.loss(state)
    return document | {
        "slot_state": f"lost: {lost}" if lost else "active" if state.active else "inactive",
        "retained_bytes": state.retained,
        "behind_bytes": state.behind,
    }


def _capture(spool: Any) -> Document:
    reported = capture_state.read(spool)
    pid = captured_by(spool)
    document: Document = {
        "state": reported.get("state") if pid else "stopped",
        "pid": pid,
        "position": None,
        "error": reported.get("error"),
        "spooled_bytes": 0,
    }
    try:
        if spool_exists(spool):
            with closing(Manifest.open(spool)) as opened:
                position = opened.position
                entries = opened.entries(opened.retired, position)
                document["position"] = str(position)
                document["spooled_bytes"] = sum(entry.segment.bytes for entry in entries)
    except SpoolFull as full:  # no process has it open, and opening it takes room
        document["error"] = to_dict(full)
    return document


def _consumers(config: Config, source: SourceConfig) -> list[Document]:
    try:
        return consumers.listed(config, source)
    except SpoolFull:  # reported with the capture
        return []


def _destination(store: Store, destination: DestinationConfig, ends: dict[str, str | None]) -> Document:
    streams = []
    for source, end in ends.items():
        progress = store.progress(source, destination.name)
        through = progress.complete_through if progress else None
        waiting = store.waiting(source, destination.name)
        streams.append(
            {
                "source": source,
                "position": str(progress.position) if progress else None,
                "complete_through": _time(through),
                "lag_bytes": max(Lsn.parse(end) - progress.position, 0) if progress and end else None,
                "lag_seconds": round((datetime.now(UTC) - through).total_seconds(), 1) if through else None,
                "rows": progress.rows if progress else 0,
                "batches": progress.batches if progress else 0,
                "waiting_since": _time(waiting[0]) if waiting else None,
                "error": to_dict(waiting[1]) if waiting else None,
            }
        )
    through_of = {str(stream["source"]): stream["complete_through"] for stream in streams}
    tables = [_table(state, through_of) for state in store.tables(destination=destination.name)]
    return {"name": destination.name, "type": destination.type, "streams": streams, "tables": tables}


def _table(state: TableState, through_of: dict[str, Any]) -> Document:
    return {
        "source": state.key.source,
        "table": str(state.name),
        "target": str(state.target),
        "phase": state.phase.value,
        "since": _time(state.since),
        "rows": state.rows,
        "complete_through": through_of.get(state.key.source) if state.phase.streams else None,
        "waiting_from": str(state.position) if state.position else None,
        "copy": _copy(state) if state.phase is Phase.DATA_SYNC else None,
        "error": to_dict(state.error) if state.error else None,
        "attempts": state.attempts,
        "retry_at": _time(state.retry_at),
    }


def _copy(state: TableState) -> Document:
    """Return how far a copy is, and how long it will take if it goes on as it did."""
    seconds = (datetime.now(UTC) - state.since).total_seconds()
    done, total = state.copied_bytes, state.total_bytes
    left = seconds * (total - done) / done if done else None
    return {
        "bytes": done,
        "total_bytes": total,
        "seconds": round(seconds, 1),
        "seconds_left": None if left is None else round(left, 1),
    }


def _time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="milliseconds") if at else None

"""The numbers of a look, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.model import Lsn
from penstock.monitoring import file_metrics
from penstock.monitoring.families import Families, timestamp

Document = dict[str, Any]

_SOURCE = ("source",)
_STREAM = ("source", "destination")
_TABLE = ("source", "destination", "table")


class _Look(Collector):
    def __init__(self, document: Document) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        document, families = self._document, Families()
        families.gauge("up", "Whether the pipeline runs", (), (), bool(document.get("running")))
        families.gauge("uptime_seconds", "Since the pipeline began", (), (), document.get("uptime_seconds"))
        families.gauge(
            "last_processing_time_us",
            "Microseconds that the last batch took",
            (),
            (),
            document.get("last_processing_time_us"),
        )
        families.counter(
            "nats_reconnects",
            "Times a NATS server was waited for",
            (),
            (),
            document.get("nats_reconnect_count"),
        )
        families.gauge("ready", "What /ready says", (), (), document.get("ready"))
        for process, size in document.get("memory_bytes", {}).items():
            families.gauge("memory_bytes", "Resident memory", ("process",), (process,), size)
        for source in document.get("sources", []):
            _of_source(families, source)
        for destination in document.get("destinations", []):
            _of_destination(families, destination)
        yield from families


def _of_source(families: Families, source: Document) -> None:
    name, capture = (source["name"],), source["capture"]
    reachable = source["error"] is None
    families.gauge("connected", "Whether the source answers", _SOURCE, name, reachable)
    families.gauge("slot_active", "Whether the slot is read", _SOURCE, name, source["slot_state"] == "active")
    families.gauge("wal_lag_bytes", "WAL since what was confirmed", _SOURCE, name, source["behind_bytes"])
    families.gauge(
        "wal_retained_bytes",
        "WAL that the source keeps for the slot",
        _SOURCE,
        name,
        source["retained_bytes"],
    )
    families.gauge(
        "wal_safe_bytes",
        "WAL that may be written before the slot is in danger",
        _SOURCE,
        name,
        source["safe_wal_bytes"],
    )
    families.gauge(
        "last_ack_lsn", "The position that was confirmed", _SOURCE, name, _lsn(source["confirmed_position"])
    )
    families.gauge(
        "restart_lsn",
        "The position from which the source keeps WAL",
        _SOURCE,
        name,
        _lsn(source["restart_position"]),
    )
    captures = None if capture["changes"] is None else capture["state"] == "streaming"
    families.gauge("capture_running", "Whether changes are captured", _SOURCE, name, captures)
    families.counter("wal_messages_received", "Changes captured", _SOURCE, name, capture["changes"])
    families.gauge("spool_bytes", "Size of the spool", _SOURCE, name, capture["spooled_bytes"])
    families.gauge("spool_room_bytes", "Room on the disk of the spool", _SOURCE, name, capture["room_bytes"])
    families.gauge("spool_disk_bytes", "Size of that disk", _SOURCE, name, capture["disk_bytes"])
    families.gauge(
        "tables_left_out", "Tables that cannot be followed", _SOURCE, name, len(source["left_out"])
    )
    labels = ("source", "consumer", "kind")
    for consumer in source["consumers"]:
        whose = (source["name"], consumer["name"], consumer["kind"])
        families.gauge(
            "consumer_behind_bytes",
            "How far a consumer is behind the spool",
            labels,
            whose,
            consumer["behind_bytes"],
        )
        families.gauge(
            "consumer_kept_bytes", "What is kept in the spool for it", labels, whose, consumer["kept_bytes"]
        )
        families.gauge(
            "oldest_unacknowledged_seconds",
            "Time since the oldest change was captured that it has not confirmed",
            labels,
            whose,
            consumer["oldest_seconds"],
        )


def _of_destination(families: Families, destination: Document) -> None:
    for stream in destination["streams"]:
        whose = (stream["source"], destination["name"])
        families.counter("cdc_events_published", "Changes delivered", _STREAM, whose, stream["rows"])
        families.counter("batches", "Batches delivered", _STREAM, whose, stream["batches"])
        families.gauge("lag_bytes", "WAL that is not delivered", _STREAM, whose, stream["lag_bytes"])
        families.gauge("lag_seconds", "Age of what is delivered", _STREAM, whose, stream["lag_seconds"])
        families.gauge(
            "complete_through_timestamp_seconds",
            "Everything that committed until then is delivered",
            _STREAM,
            whose,
            timestamp(stream["complete_through"]),
        )
        families.gauge(
            "destination_waiting",
            "Whether the destination is waited for",
            _STREAM,
            whose,
            bool(stream["error"]),
        )
    if destination["files"] is not None:
        file_metrics.add(families, destination["name"], destination["files"])
    for table in destination["tables"]:
        of_table = (table["source"], destination["name"], table["table"])
        families.gauge(
            "table_phase", "1 for the phase of a table", (*_TABLE, "phase"), (*of_table, table["phase"]), 1
        )
        families.gauge("table_copied_rows", "Rows of its last copy", _TABLE, of_table, table["rows"])
        families.gauge(
            "table_complete_through_timestamp_seconds",
            "Everything of it that committed until then is delivered",
            _TABLE,
            of_table,
            timestamp(table["complete_through"]),
        )
        if table["copy"] is not None:
            total = table["copy"]["total_bytes"]
            done = table["copy"]["bytes"] / total if total else 0
            families.gauge("copy_progress_ratio", "How much of a copy is done", _TABLE, of_table, done)


def rendered(document: Document, events: CollectorRegistry) -> bytes:
    """Return what /metrics answers."""
    look = CollectorRegistry()
    look.register(_Look(document))
    return generate_latest(look) + generate_latest(events)


def _lsn(text: str | None) -> int | None:
    return Lsn.parse(text).value if text else None

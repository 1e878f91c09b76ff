"""What happened: every line of the pipeline's log comes here too, as an event with its fields.

Counters are of what a look at the state now and then would miss: batches, retries, errors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.monitoring.written_files import WrittenFiles

Event = Mapping[str, Any]

REMEMBERED = 200
"""Events that the dashboard can show."""
TOLD = ("info", "warning", "error", "critical")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STREAM = ("source", "destination")


class Events:
    """Takes them in one thread, and is read by others."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()
        self.files = WrittenFiles(self.registry)
        self.last_batch_seconds = 0.0
        self.last_batches: dict[tuple[str, str], dict[str, Any]] = {}
        """By source and destination."""
        self._seconds = self._made(
            Histogram, "batch_duration_seconds", "Time that a batch took", _STREAM, buckets=_SECONDS
        )
        self._last = self._made(
            Gauge, "last_batch_timestamp_seconds", "When the last batch was delivered", _STREAM
        )
        self._rows = self._made(Counter, "table_changes", "Changes delivered", (*_STREAM, "table"))
        self._batches = self._made(
            Counter, "table_batches", "Batches with changes of a table", (*_STREAM, "table")
        )
        self._bytes = self._made(Counter, "batch_bytes", "WAL that batches covered", _STREAM)
        self._waits = self._made(Counter, "destination_waits", "Times a destination was waited for", _STREAM)
        self._reconnects = self._made(
            Counter, "reconnects", "Times a capture connected again, or was started again", ("source",)
        )
        self._failures = self._made(Counter, "table_failures", "Times a table stopped", (*_STREAM, "table"))
        self._events = self._made(Counter, "log_events", "Lines of the log", ("level",))

    def _made(self, kind: Any, name: str, help: str, labels: tuple[str, ...], **more: Any) -> Any:
        return kind(f"penstock_{name}", help, labels, registry=self.registry, **more)

    def take(self, event: Event) -> None:
        level = str(event.get("level", "info"))
        self._events.labels(level).inc()
        if level in TOLD:
            with self._lock:
                self._recent.append(dict(event))
        self._count(str(event.get("event")), event)

    def _count(self, what: str, event: Event) -> None:
        source, destination = str(event.get("source", "")), str(event.get("destination", ""))
        match what:
            case "batch":
                self.last_batch_seconds = float(event["seconds"])
                self._seconds.labels(source, destination).observe(self.last_batch_seconds)
                now = datetime.now(UTC)
                self._last.labels(source, destination).set(now.timestamp())
                self.last_batches[source, destination] = {
                    "at": now.isoformat(timespec="milliseconds"),
                    "seconds": self.last_batch_seconds,
                }
                self._bytes.labels(source, destination).inc(event.get("bytes", 0))
                for table, rows in event.get("table_rows", {}).items():
                    self._rows.labels(source, destination, table).inc(rows)
                    self._batches.labels(source, destination, table).inc(rows > 0)
            case "files written":
                self.files.take(event)
            case "waiting for the destination":
                self._waits.labels(source, destination).inc()
            case "capture ended":
                self._reconnects.labels(source).inc()
            case "capture goes on":
                self._reconnects.labels(source).inc(event.get("reconnects", 0))
            case "table errored":
                self._failures.labels(source, destination, str(event.get("table", ""))).inc()

    def recent(self) -> list[dict[str, Any]]:
        """Return what was told, the newest first."""
        with self._lock:
            return list(reversed(self._recent))

    def waits_of(self, destinations: set[str]) -> int:
        """Return how often these destinations were waited for."""
        return int(
            sum(
                sample.value
                for sample in self._waits.collect()[0].samples
                if sample.name.endswith("_total") and sample.labels["destination"] in destinations
            )
        )

    def count(self, name: str) -> int:
        """Return a counter's sum over all its labels."""
        return int(
            sum(
                sample.value
                for metric in self.registry.collect()
                if metric.name == f"penstock_{name}"
                for sample in metric.samples
                if sample.name.endswith("_total")
            )
        )

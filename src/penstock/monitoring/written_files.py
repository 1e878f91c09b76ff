"""Files that were written while we listened, and how much smaller compression made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

_LABELS = ("source", "destination", "type")


class WrittenFiles:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str) -> Counter:
            return Counter(f"penstock_files_{name}", help, _LABELS, registry=registry)

        self._files = counter("written", "Files written")
        self._bytes = counter("written_bytes", "Their size")
        self._uncompressed = counter("uncompressed_bytes", "What was written to them, before compression")
        self._seconds = counter("compression_seconds", "CPU time that compression took")
        self._ratio = Gauge(
            "penstock_files_compression_ratio", "Bytes before by bytes after", _LABELS, registry=registry
        )
        self._sums: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Bytes before and after."""

    def take(self, event: Mapping[str, Any]) -> None:
        labels = (str(event["source"]), str(event["destination"]), str(event["type"]))
        before, after = self._sums.get(labels, (0, 0))
        before, after = before + event["uncompressed_bytes"], after + event["bytes"]
        self._sums[labels] = before, after
        self._files.labels(*labels).inc(event["files"])
        self._bytes.labels(*labels).inc(event["bytes"])
        self._uncompressed.labels(*labels).inc(event["uncompressed_bytes"])
        self._seconds.labels(*labels).inc(event["compression_seconds"])
        if after:
            self._ratio.labels(*labels).set(before / after)

    def ratio(self, destination: str) -> float | None:
        """Return that of all files of a destination; None if none were written."""
        sums = [sizes for labels, sizes in list(self._sums.items()) if labels[1] == destination]
        after = sum(after for _, after in sums)
        return round(sum(before for before, _ in sums) / after, 2) if after else None

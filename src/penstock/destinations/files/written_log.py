"""What was written, for the metrics: events of the log, one for each type of file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from penstock.destinations.files.registry import FileEntry


def tell(log: Any, source: str, entries: Iterable[FileEntry]) -> None:
    by_type = defaultdict[str, list[FileEntry]](list)
    for entry in entries:
        by_type[entry.type].append(entry)
    for type, files in by_type.items():
        meters = [entry.meter for entry in files if entry.meter is not None]
        plain = sum(entry.file.size for entry in files if entry.meter is None)
        log.debug(
            "files written",
            source=source,
            type=type,
            files=len(files),
            bytes=sum(entry.file.size for entry in files),
            uncompressed_bytes=plain + sum(meter.size for meter in meters),
            compression_seconds=round(sum(meter.seconds for meter in meters), 3),
        )

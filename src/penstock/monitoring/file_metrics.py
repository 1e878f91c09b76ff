"""The numbers of delivered files, as the registry has them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.monitoring.families import Families, timestamp

Document = dict[str, Any]

_OF_A_TABLE = ("source", "destination", "table")
_OF_A_TYPE = (*_OF_A_TABLE, "type")
_OF_A_CONSUMER = ("source", "destination", "consumer")


def add(families: Families, destination: str, files: Document) -> None:
    families.gauge(
        "files_room_bytes", "Room on their disk", ("destination",), (destination,), files["room_bytes"]
    )
    folders: Counter[tuple[str, str, str]] = Counter()
    for each in files["tables"]:
        table = (each["source"], destination, each["table"])
        kind = (*table, each["type"])
        folders[table] += each["folders"]
        families.gauge("files", "Files in the registry", _OF_A_TYPE, kind, each["files"])
        families.gauge("files_bytes", "Their size", _OF_A_TYPE, kind, each["bytes"])
        families.gauge(
            "files_last_timestamp_seconds",
            "When the last one was registered",
            _OF_A_TYPE,
            kind,
            timestamp(each["last_at"]),
        )
    for table, count in folders.items():
        families.gauge("files_folders", "Folders of a table", _OF_A_TABLE, table, count)
    for each in files["consumers"]:
        families.gauge(
            "files_oldest_unprocessed_seconds",
            "Age of the oldest file that a consumer of the registry has still to read",
            _OF_A_CONSUMER,
            (each["source"], destination, each["consumer"]),
            each["oldest_seconds"],
        )

"""What a pipeline keeps, and what room there is: the spool's disk, the state, files that were delivered."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from penstock.config import Config
from penstock.config.destinations import DestinationConfig
from penstock.destinations.files import recent_files
from penstock.destinations.files.options import FilesOptions
from penstock.model.errors import to_dict
from penstock.postgres.connection import Connection, explain

TOTAL = 30.0
"""Seconds between two looks at how many files there are: those ask for the whole registry."""

Document = dict[str, Any]


class DeliveredFiles:
    """The files of one source, by the registries that destinations have in its database."""

    def __init__(self, config: Config) -> None:
        registries = {
            destination.name: destination.settings(FilesOptions).file_registry
            for destination in config.destinations
            if destination.type == "files"
        }
        self._schemas = {name: each.schema_name for name, each in registries.items() if each.enabled}
        self._totals: dict[str, Document] = {}
        self._counted = -TOTAL

    def look(self, connection: Connection) -> Document:
        """Return them by destination, and what is wrong with the registries: none of them if these may not be
        read, or somebody has them locked."""
        if not self._schemas:
            return {"files": {}, "registry": None}
        try:
            return {"files": self._looked_at(connection), "registry": {"error": None}}
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
            return {"files": {}, "registry": {"error": to_dict(explain(error))}}

    def _looked_at(self, connection: Connection) -> dict[str, Document]:
        if time.monotonic() - self._counted >= TOTAL:
            self._totals = {
                name: {
                    "tables": recent_files.by_table(connection, schema),
                    "consumers": recent_files.unread(connection, schema),
                }
                for name, schema in self._schemas.items()
            }
            self._counted = time.monotonic()
        return {
            name: {**self._totals[name], "recent": recent_files.newest(connection, schema)}
            for name, schema in self._schemas.items()
        }


def files(destination: DestinationConfig, of_sources: dict[str, dict[str, Document]]) -> Document | None:
    """Return the files of a destination; None: it registers none, or no source can be asked."""
    name = destination.name
    by_source = [(source, files[name]) for source, files in of_sources.items() if name in files]
    if not by_source:
        return None
    parts: dict[str, list[Document]] = {
        key: [{"source": source, **each} for source, files in by_source for each in files[key]]
        for key in ("tables", "consumers", "recent")
    }
    tables, consumers = parts["tables"], parts["consumers"]
    return {
        "count": sum(each["files"] for each in tables),
        "bytes": sum(each["bytes"] for each in tables),
        "folders": sum(each["folders"] for each in tables),
        **disk(destination.settings(FilesOptions).folder),
        "tables": tables,
        "consumers": [each | {"oldest_seconds": _age(each["oldest_at"])} for each in consumers],
        "recent": sorted(parts["recent"], key=lambda each: str(each["at"]), reverse=True)[
            : recent_files.NEWEST
        ],
    }


def _age(at: str | None) -> float:
    return max(round((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds(), 1), 0.0) if at else 0.0


def disk(folder: Path | None) -> Document:
    """Return the size of the disk that a folder is on, and what is free there; None if it is not there."""
    try:
        usage = shutil.disk_usage(folder) if folder else None
    except OSError:
        usage = None
    return {"room_bytes": usage and usage.free, "disk_bytes": usage and usage.total}


def size_of_state(file: Path | None) -> int | None:
    """Return the size of an SQLite database with its log; None for one on a server."""
    if file is None:
        return None
    parts = [file, file.with_name(f"{file.name}-wal")]
    return sum(part.stat().st_size for part in parts if part.exists())

"""What a pipeline keeps, and what room there is: the spool's disk, the state, files that were delivered."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import psycopg

from penstock.config import Config
from penstock.destinations.files import recent_files
from penstock.destinations.files.options import FilesOptions
from penstock.postgres.connection import Connection

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

    def look(self, connection: Connection) -> dict[str, Document]:
        """Return them by destination; none if they may not be read, or somebody has them locked."""
        try:
            return self._looked_at(connection)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
            return {}

    def _looked_at(self, connection: Connection) -> dict[str, Document]:
        if time.monotonic() - self._counted >= TOTAL:
            self._totals = {
                name: recent_files.total(connection, schema) for name, schema in self._schemas.items()
            }
            self._counted = time.monotonic()
        return {
            name: {**self._totals[name], "recent": recent_files.newest(connection, schema)}
            for name, schema in self._schemas.items()
        }


def room(folder: Path) -> int | None:
    """Return the bytes that are free on the disk that a folder is on; None if it is not there."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def size_of_state(file: Path | None) -> int | None:
    """Return the size of an SQLite database with its log; None for one on a server."""
    if file is None:
        return None
    parts = [file, file.with_name(f"{file.name}-wal")]
    return sum(part.stat().st_size for part in parts if part.exists())

"""SQLite as several processes use it: the write-ahead log, and nothing lost with the power."""

from __future__ import annotations

import sqlite3
import time

WAIT = 30.0
"""Seconds to wait for others."""
_POLL = 0.02


def make_durable(connection: sqlite3.Connection) -> None:
    """Switch a new database to the write-ahead log. Of those who do it at once SQLite does not let the others
    wait for that, whatever their timeout: it refuses them."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_POLL)
    connection.execute("pragma synchronous = full")

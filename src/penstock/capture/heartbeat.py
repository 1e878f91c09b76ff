"""A message of our own in the WAL now and then, so that a source with idle tables never pins its WAL.

Keepalives tell most of it. But a server can be busy with other databases, or with tables nobody follows,
and stay silent for long. The message is written only when the WAL has grown by more than the server itself
writes after it (a checkpoint, who is running): an idle server stays idle. A standby cannot write and does
without.
"""

from __future__ import annotations

import threading

import psycopg
import structlog

from penstock.capture.messages import HEARTBEAT_PREFIX
from penstock.model import Lsn
from penstock.model.errors import PenstockError
from penstock.postgres.connection import Connection, connect

GROWTH = 64 << 10
"""Bytes of WAL, of all databases, that make a beat."""

_BEAT = """
select pg_logical_emit_message(false, %(prefix)s, '')
 where not pg_is_in_recovery()
   and pg_current_wal_insert_lsn() - coalesce(%(last)s::pg_lsn, '0/0') > %(growth)s
"""


_MARK = """
select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
            else pg_logical_emit_message(true, %s, '') end::text
"""


def mark(connection: Connection) -> Lsn:
    """Write a mark to the WAL; return its place. A capture beyond it has all that had committed before
    now."""
    marked = connection.execute(_MARK, (HEARTBEAT_PREFIX,)).fetchone()
    assert marked is not None
    return Lsn.parse(marked[0])


def beat(connection: Connection, last: str | None) -> str | None:
    """Write a beat if the WAL has grown since the last one; return where the last one is."""
    values = {"prefix": HEARTBEAT_PREFIX, "last": last, "growth": GROWTH}
    row = connection.execute(_BEAT, values).fetchone()
    return row[0] if row else last


class Heartbeat(threading.Thread):
    def __init__(self, conninfo: str, seconds: float) -> None:
        """`seconds` between two beats; 0 for none at all."""
        super().__init__(name="heartbeat", daemon=True)
        self._conninfo = conninfo
        self._seconds = seconds
        self._ending = threading.Event()

    def run(self) -> None:
        log = structlog.get_logger("penstock.capture")
        if not self._seconds:
            return
        while not self._ending.wait(self._seconds):
            try:
                self._beat_until_lost()
            except (PenstockError, psycopg.Error) as error:
                log.debug("heartbeat failed", error=str(error))

    def _beat_until_lost(self) -> None:
        last: str | None = None
        with connect(self._conninfo) as connection:
            while True:
                last = beat(connection, last)
                if self._ending.wait(self._seconds):
                    return

    def finish(self) -> None:
        self._ending.set()
        self.join(timeout=5)

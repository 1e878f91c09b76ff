"""With which SQLSTATE a server refuses a connection.

libpq tells a refusal in the server's words only, and those are of any language. It can be asked to tell the
SQLSTATE in their place, but only before it connects: so what was refused is asked for once more.
"""

from __future__ import annotations

import ctypes
import re
import select
import time

import psycopg
from psycopg import pq

from penstock.postgres.library import libpq

SECONDS = 10.0
_SQLSTATE_ALONE = 3
"""PQERRORS_SQLSTATE"""
_STATE = re.compile(r":\s+(\d[0-9A-Z]{4})\s*$", re.MULTILINE)


def with_state(error: psycopg.Error, conninfo: str) -> psycopg.Error:
    """Return the error in the class of the server's SQLSTATE, if the server gave one."""
    if error.sqlstate is not None or isinstance(error, psycopg.errors.ConnectionTimeout):
        return error
    try:
        return psycopg.errors.lookup(_state(conninfo) or "")(str(error))
    except KeyError:
        return error


def _state(conninfo: str) -> str | None:
    """None if the server lets us in this time, or nobody is there."""
    connection = pq.PGconn.connect_start(conninfo.encode())
    try:
        pointer = ctypes.c_void_p(connection.pgconn_ptr)  # type: ignore[attr-defined]
        libpq().PQsetErrorVerbosity(pointer, _SQLSTATE_ALONE)
        if _connected(connection):
            return None
        states = _STATE.findall(connection.error_message.decode(errors="replace"))
        return states[-1] if states else None
    finally:
        connection.finish()


def _connected(connection: pq.abc.PGconn) -> bool:
    until = time.monotonic() + SECONDS
    events = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
    while connection.status != pq.ConnStatus.BAD and time.monotonic() < until:
        status = pq.PollingStatus(connection.connect_poll())
        if status not in events:
            return status == pq.PollingStatus.OK
        waiting = select.poll()
        waiting.register(connection.socket, events[status])
        waiting.poll(max(0.0, until - time.monotonic()) * 1000)
    return False

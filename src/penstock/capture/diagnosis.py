"""What it means that the server refuses the stream, or ends it.

The server says so by an SQLSTATE. One state can mean several things (a slot and a publication that do not
exist have the same), and which of them stands only in words, of whatever language: so the catalog is asked.

PostgreSQL can also fail to decode its own WAL, for ever: by a bug of its own, by a byte that is no text, by a
file that is gone. After some attempts at one position that is told, as a slot that has lost changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg

from penstock.capture.spec import CaptureSpec
from penstock.model import Lsn
from penstock.model.errors import (
    ConnectionFailed,
    DecodingFailed,
    PenstockError,
    PublicationMissing,
    ServerBusy,
    SlotLost,
)
from penstock.postgres import publication, slot
from penstock.postgres.connection import Connection, connect, explain

ATTEMPTS = 5
"""At one position, before it counts as one that cannot be passed."""
SOMETHING_GONE = ("42704", "55000")
"""undefined_object, object_not_in_prerequisite_state: a slot or a publication that is missing or cannot be
used. Of a missing publication the server only warns, from PostgreSQL 18 on."""

_STANDBYS = "StandbySlotsHaveCaughtup"
"""The server's function that warns, and when it shuts down fails, as long as a standby is away that
`synchronized_standby_slots` names: it has the same state, and the stream goes on once that is back."""
_PASSING = re.compile(r"25P0[34]|40...|53...|57...")
"""A time limit, another session was in the way, no room or memory, cancelled."""
AGAIN = "It is tried again by itself, from the same position"


class Diagnosis:
    """Of one capture. It remembers how often the stream ended at a position."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._position: Lsn | None = None
        self._attempts = 0

    def of(self, error: psycopg.Error, position: Callable[[], Lsn]) -> PenstockError:
        """Return the error as the capture's, whose policy says if to go on; `position`: how far it came."""
        explained, state = explain(error), error.sqlstate or ""
        if waits_for_standby(error):
            return ConnectionFailed(explained.reason, remedy=AGAIN)
        if state in SOMETHING_GONE:
            return self._what_is_gone(explained.reason, position())
        if type(explained) not in (PenstockError, ServerBusy):
            return explained
        if _PASSING.fullmatch(state):
            return ConnectionFailed(explained.reason, remedy=AGAIN)
        return self._undecodable(f"{explained.reason} (SQLSTATE {state})", position())

    def _what_is_gone(self, reason: str, position: Lsn) -> PenstockError:
        try:
            with connect(self._spec.conninfo) as connection:
                return self._in_catalog(connection, reason, position)
        except PenstockError as error:
            return error
        except psycopg.Error as error:
            return explain(error)

    def _in_catalog(self, connection: Connection, reason: str, position: Lsn) -> PenstockError:
        check_publication(connection, self._spec.publication)
        if not self._spec.temporary_slot:
            slot.check_usable(slot.describe(connection, self._spec.slot), position)
        if connection.execute("select pg_is_in_recovery()").fetchone() == (True,):
            return ConnectionFailed(f"the server is a standby: {reason}", remedy="It is waited for")
        return SlotLost(
            f"the server cannot send what follows: {reason}",
            position=position,
            remedy="Slot and publication are there now. If the publication was dropped and made again, what "
            "was written in between cannot be read: set `on_slot_lost: resync` to copy the tables anew",
        )

    def _undecodable(self, reason: str, position: Lsn) -> PenstockError:
        if position != self._position:
            self._position, self._attempts = position, 0
        self._attempts += 1
        if self._attempts < ATTEMPTS:
            return ConnectionFailed(f"the server ended the stream: {reason}", remedy=AGAIN)
        return DecodingFailed(
            f"{self._attempts} times the server failed to decode its WAL: {reason}",
            slot=self._spec.slot,
            position=position,
        )


def waits_for_standby(error: psycopg.Error) -> bool:
    return error.diag.source_function == _STANDBYS


def check_publication(connection: Connection, name: str) -> None:
    if publication.describe(connection, name) is None:
        raise PublicationMissing(f"the publication {name} does not exist")

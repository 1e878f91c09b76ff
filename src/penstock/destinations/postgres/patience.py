"""How long a table is waited for that somebody else has locked, or reads while it is to be altered.

Most readers are done within seconds, and nobody overtakes who waits for a lock: so a wait is long. But a
backup reads all tables for hours, and nobody else is to wait once for each of them. So after a long wait that
was in vain all are short for a while, in the same batch and when tables are tried again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from penstock.destinations.postgres.endpoint import Endpoint
from penstock.model.errors import DestinationBusy, PenstockError

EVERY = 60.0
"""Seconds from one long wait that was in vain to the next long one."""


class Patience:
    """Of a destination."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._impatient_until = 0.0

    def endpoint(self) -> Endpoint:
        """Return the destination as it is to be written to now."""
        return replace(self._endpoint, patient=time.monotonic() >= self._impatient_until)

    def note(self, used: Endpoint, errors: Iterable[PenstockError | None]) -> None:
        """Note what came of it."""
        if used.patient and any(isinstance(error, DestinationBusy) for error in errors):
            self._impatient_until = time.monotonic() + EVERY

"""What time it was at the source when its WAL was where: so that a position can be told as a time.

One thread asks the source and notes the answers, another one looks for a position among them.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import datetime, timedelta

from penstock.model import Lsn

MARGIN = timedelta(seconds=1)
"""A commit's time is taken a moment before its record is in the WAL; this is longer than that moment."""
REMEMBERED = 3600
"""Readings that are kept: how far behind a destination may be to be told its time."""


class ClockReadings:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: deque[tuple[Lsn, datetime]] = deque(maxlen=REMEMBERED)

    def note(self, time: datetime, position: Lsn) -> None:
        """Keep that the WAL ended at this position, or before it, when it was this time."""
        with self._lock:
            self._readings.append((position, time - MARGIN))

    def complete_through(self, position: Lsn) -> datetime | None:
        """Return the time up to which all that committed is before this position, as far as is known."""
        with self._lock:
            readings = list(self._readings)
        return next((time for reached, time in reversed(readings) if reached <= position), None)

"""An hour of lag and rates, for the dashboard's chart."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

HOUR = 3600.0
STEP = 5.0
"""Seconds between two points."""

Point = dict[str, Any]


@dataclass(slots=True)
class History:
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=int(HOUR / STEP)))
    _last: float = -STEP

    def note(self, at: float, now: float, document: dict[str, Any]) -> None:
        """Keep a point of this look, if the last one is long enough ago. `now` never goes back."""
        if now - self._last < STEP:
            return
        self._last = now
        streams = [(d["name"], s) for d in document.get("destinations", []) for s in d["streams"]]
        self.points.append(
            {
                "at": round(at, 3),
                "captured": {s["name"]: s["rates"]["changes"] for s in document.get("sources", [])},
                "lag_bytes": {_name(name, s): s["lag_bytes"] for name, s in streams},
                "lag_seconds": {_name(name, s): s["lag_seconds"] for name, s in streams},
                "rows": {_name(name, s): s["rates"]["rows"] for name, s in streams},
            }
        )


def _name(destination: str, stream: dict[str, Any]) -> str:
    return f"{stream['source']} → {destination}"

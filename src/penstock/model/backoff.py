"""How long to wait before something is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double up to a limit, a little uneven, and start over after a success."""

    def __init__(self, initial: float, most: float) -> None:
        self._initial, self._most = initial, most
        self.reset()

    def reset(self) -> None:
        self._next = self._initial

    def pause(self) -> float:
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause * random.uniform(0.8, 1.0)

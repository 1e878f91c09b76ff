"""What the server refused to have changed in a publication, so that it is not asked again every two seconds.

A refusal costs the source an error in its log and a lock on a table. It stands until the table (or the
publication, for its options) looks otherwise than when it was refused, or until a pause is over that grows
with each refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from penstock.model import TableName

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0

Refusable = TableName | str
"""A table, or the publication, by its name."""


@dataclass(frozen=True, slots=True)
class Refused:
    sentence: str
    looked: object
    """How what was refused looked then."""
    pause: float
    until: float


class Refusals:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks: Mapping[Refusable, Hashable] = {}
        self._refused: dict[Refusable, Refused] = {}

    def see(self, looks: Mapping[Refusable, Hashable]) -> None:
        """Take how everything looks now; forget the refusals of what looked otherwise."""
        self._looks = looks
        self._refused = {
            name: refused
            for name, refused in self._refused.items()
            if name in looks and looks[name] == refused.looked
        }

    def standing(self) -> dict[Refusable, str]:
        """Return what is not to be tried now, with the sentence that tells why it was refused."""
        now = self._clock()
        return {name: refused.sentence for name, refused in self._refused.items() if now < refused.until}

    def note(self, name: Refusable, sentence: str) -> None:
        before = self._refused.get(name)
        pause = min(before.pause * 2, LONGEST_PAUSE_SECONDS) if before else FIRST_PAUSE_SECONDS
        self._refused[name] = Refused(sentence, self._looks.get(name), pause, self._clock() + pause)

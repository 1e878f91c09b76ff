"""A position in PostgreSQL's write-ahead log."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A log sequence number: neither an int nor a string, but it orders and prints.

    Used as a *position* it means "everything that committed before here": a change is behind position
    `p` exactly when its `commit_lsn < p`. That is also what a slot's `confirmed_flush_lsn` means.
    """

    value: int

    @classmethod
    def parse(cls, text: str) -> Lsn:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an LSN; one looks like 16/B374D848")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"

    def __sub__(self, other: Lsn) -> int:
        return self.value - other.value

    def __bool__(self) -> bool:
        return self.value != 0


@dataclass(frozen=True, slots=True)
class Reached:
    """How far changes were read, and in which history: a server can be restored, or be another one."""

    position: Lsn
    timeline: int | None
    """None: an earlier version did not keep it."""
    system_id: str


ZERO = Lsn(0)

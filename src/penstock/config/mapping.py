"""What people decided of single tables while a pipeline runs (`mapping: database`), beside the file.

The file says what holds in general: which tables, where they arrive, what is hidden of them. A decision is
about one table of one source, and says that it is captured or not, and at which target and as what kind it
arrives somewhere; whatever it does not say, the file does. So a decision that is taken back leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.model import TableName

TARGET = r'^(("([^"\x00]|"")+"|[^"\x00.*?\[\]]+)\.)?("([^"\x00]|"")+"|[^"\x00.*?\[\]]+)$'
"""A target that a decision may name: `table` or `schema.table`, in double quotes what holds anything else."""


@dataclass(frozen=True, slots=True)
class Placing:
    """How a table arrives at one destination; None: as the file says."""

    target: str | None = None
    kind: str | None = None

    def __bool__(self) -> bool:
        return self != Placing()


@dataclass(frozen=True, slots=True)
class Decision:
    captured: bool | None = None
    """None: as the file says."""
    placings: Mapping[str, Placing] = field(default_factory=dict)
    """By destination."""

    def __bool__(self) -> bool:
        return self.captured is not None or any(self.placings.values())

    def document(self) -> dict[str, Any]:
        return {
            name: {key: value for key, value in (("target", p.target), ("kind", p.kind)) if value is not None}
            for name, p in self.placings.items()
            if p
        }

    @classmethod
    def of(cls, captured: bool | None, document: Mapping[str, Mapping[str, Any]]) -> Decision:
        placings = {name: Placing(d.get("target"), d.get("kind")) for name, d in document.items()}
        return cls(captured, {name: placing for name, placing in placings.items() if placing})


TableOfSource = tuple[str, TableName]
Decisions = Mapping[TableOfSource, Decision]

"""What an error is: a sentence for the operator, the place where it happened, and what to do about it.

The class of an error says whether it concerns one table or the whole source, whether trying again by itself
can help, and what to do where the place that raised it knows nothing better.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    TABLE = "table"
    SOURCE = "source"
    RUN = "run"
    """The invocation: a wrong configuration, a missing program."""


class PenstockError(Exception):
    """The root of all errors that an operator is meant to read."""

    scope = Scope.SOURCE
    retry = False
    """Whether trying again can help."""
    endless = False
    """Of a table's error: whether it is tried again for as long as it lasts, since it passes by itself."""
    remedy = ""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    def __init__(self, reason: str, *, remedy: str | None = None, **where: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = {key: value for key, value in where.items() if value is not None}
        if remedy:
            self.remedy = remedy

    def at(self, **where: Any) -> PenstockError:
        """Add to the error's place, and return the error; what it knew already stays."""
        self.where = {key: value for key, value in where.items() if value is not None} | self.where
        return self

    def __str__(self) -> str:
        place = ", ".join(f"{key} {value}" for key, value in self.where.items())
        sentence = f"{self.reason} ({place})" if place else self.reason
        return f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} {self.remedy}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.reason, self.__dict__.get("remedy"), self.where)


def _rebuild(
    kind: type[PenstockError], reason: str, remedy: str | None, where: dict[str, Any]
) -> PenstockError:
    return kind(reason, remedy=remedy, **where)


_KINDS: dict[str, type[PenstockError]] = {}


def to_dict(error: PenstockError) -> dict[str, Any]:
    """Return the error for JSON: for other processes, and to be stored."""
    return {
        "kind": type(error).__name__,
        "reason": error.reason,
        "remedy": error.remedy,
        "where": {key: str(value) for key, value in error.where.items()},
    }


def from_dict(document: Mapping[str, Any]) -> PenstockError:
    """Return the error again, of its kind if that is known here, with its place in words."""
    kind = _KINDS.get(document["kind"], PenstockError)
    return kind(document["reason"], remedy=document["remedy"], **document["where"])

"""What a check is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from penstock.config import SourceConfig
from penstock.model import Lsn
from penstock.postgres import publication, slot
from penstock.postgres.catalog import Table, captured
from penstock.postgres.connection import Connection, explain


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""


def ok(name: str, detail: str) -> Check:
    return Check(name, Outcome.OK, detail)


def warning(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Outcome.WARNING, detail, remedy)


def failure(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Outcome.FAILURE, detail, remedy)


@dataclass(frozen=True)
class Situation:
    """One source as it stands. What several checks ask for is looked up once."""

    connection: Connection
    source: SourceConfig
    spool: Path
    matched: list[Table]
    position: Lsn | None = None
    """How far the spool has the source's changes; None where there is none."""

    @property
    def version(self) -> int:
        return self.connection.info.server_version

    @cached_property
    def captured(self) -> list[Table]:
        return captured(self.matched)

    @cached_property
    def slot(self) -> slot.SlotState | None:
        return slot.describe(self.connection, self.source.slot_name)

    @cached_property
    def publication(self) -> publication.Publication | None:
        return publication.describe(self.connection, self.source.publication_name)

    @property
    def makes_publication(self) -> bool:
        """Whether Penstock will make the publication, or may alter it."""
        wanted = self.source.replication.create_publication
        return wanted and (self.publication is None or self.publication.ours)

    @cached_property
    def standby(self) -> bool:
        return bool(self.one("select pg_is_in_recovery()"))

    def setting(self, name: str) -> str:
        """A server setting in its base unit, as pg_settings has it."""
        return str(self.one("select setting from pg_settings where name = %s", name))

    def one(self, statement: str, *values: Any) -> Any:
        row = self.connection.execute(statement.encode(), values).fetchone()
        return row[0] if row else None


CheckFunction = Callable[[Situation], Check | None]
Looked = TypeVar("Looked")


def attempt(
    connection: Connection, check: Callable[[Looked], Check | None], situation: Looked
) -> Check | None:
    """Run a check; an error in it is a failure of this check alone, and the next one goes on."""
    try:
        with connection.transaction():
            return check(situation)
    except psycopg.Error as error:
        explained = explain(error)
        name = check.__name__.replace("_", " ")
        return failure(name, f"could not be checked: {explained.reason}", explained.remedy)


def where(info: psycopg.ConnectionInfo) -> str:
    return info.host if info.host.startswith("/") else f"{info.host}:{info.port}"


def some(names: Iterable[object], most: int = 5) -> str:
    """A list for one line: the first few, and how many more."""
    listed = sorted(map(str, names))
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

"""Calls that fail once, or at which the process dies: chosen by what is called, from where, in which step.

A *point* is a call of the store, the manifest, the destination or the source's catalog, told by its name, by
the place in the package that makes it and by the step of the workload. At a point that is chosen the first
call fails, before its effect or after it (the answer is lost), or the process dies there. From its death on
every call dies, so that no handler does what a dead process cannot do.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import penstock
from penstock.capture import launch
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import Storage
from penstock.destinations.postgres import endpoint
from penstock.model.errors import ConnectionFailed, SpoolUnreachable, StateUnreachable, StorageFailed
from penstock.pipeline import awaited_writers, copier, table_facts
from penstock.pipeline.catalog_look import Look
from penstock.postgres import ddl, slot
from penstock.postgres.snapshot import Snapshot
from penstock.spool.manifest import Manifest
from penstock.state.database import Database as StateDatabase

PACKAGE = str(Path(penstock.__file__).parent)
CAPTURE = (f"{PACKAGE}/capture/process", f"{PACKAGE}/capture/worker")
PASSED_OVER = ("state/", "spool/", "destinations/postgres/endpoint", "destinations/files/source_records")
"""Where calls are passed on, not made."""
DEPTH = 4
"""Functions that tell where a call comes from."""


class Died(BaseException):
    """No handler of the package catches it."""


class Way(StrEnum):
    FAILS_BEFORE = "fails before"
    FAILS_AFTER = "fails after"
    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"

    @property
    def dies(self) -> bool:
        return self in (Way.DIES_BEFORE, Way.DIES_AFTER)

    @property
    def after(self) -> bool:
        return self in (Way.FAILS_AFTER, Way.DIES_AFTER)


@dataclass(frozen=True, slots=True)
class Point:
    step: str
    call: str
    site: str

    def __str__(self) -> str:
        return f"{self.step}: {self.call} by {self.site}"


@dataclass
class Faults:
    way: Way = Way.FAILS_BEFORE
    chosen: Callable[[Point], bool] = lambda _: False
    step: str = ""
    """Of the workload; none: nothing fails."""
    points: dict[Point, None] = field(default_factory=dict)
    """All that were passed, in order."""
    struck: list[Point] = field(default_factory=list)
    dead: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(self, way: Way, chosen: Callable[[Point], bool]) -> None:
        """Another run."""
        self.way, self.chosen, self.step, self.dead = way, chosen, "", False
        self.points, self.struck = {}, []

    @contextmanager
    def at(
        self,
        call: str,
        error: Callable[[], Exception],
        effect: bool = True,
        halfway: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Around a call; without an effect there is no failing after it. Who dies before all of it is done
        may leave something halfway."""
        strikes = self._strikes(call, effect)
        if strikes and not self.way.after:
            if self.way.dies:
                halfway()
            self._strike(error)
        yield
        if strikes and self.way.after:
            self._strike(error)

    def _strikes(self, call: str, effect: bool) -> bool:
        with self._lock:
            site = _site()
            if site is None:
                return False
            if self.dead:
                raise Died
            point = Point(self.step, call, site)
            if not self.step or point in self.points or (self.way.after and not effect):
                return False
            self.points[point] = None
            if self.chosen(point):
                self.struck.append(point)
                return True
            return False

    def _strike(self, error: Callable[[], Exception]) -> None:
        if self.way.dies:
            self.dead = True
            raise Died
        raise error()

    def around(
        self,
        call: str,
        real: Callable[..., Any],
        error: Callable[[], Exception],
        effect: bool = True,
        halfway: Callable[..., None] = lambda *_: None,
    ) -> Any:
        def wrapped(*given: Any, **named: Any) -> Any:
            with self.at(call, error, effect, partial(halfway, *given)):
                return real(*given, **named)

        return wrapped

    def around_context(
        self, call: str, real: Callable[..., AbstractContextManager[Any]], error: Callable[[], Exception]
    ) -> Any:
        @contextmanager
        def wrapped(*given: Any, **named: Any) -> Iterator[Any]:
            with self.at(call, error), real(*given, **named) as made:
                yield made

        return wrapped

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Into everything that the pipeline calls. Whole transactions are what is before or after."""

        def spool_fails() -> Exception:
            return SpoolUnreachable("the manifest cannot be used now: a fault")

        def state_fails() -> Exception:
            return StateUnreachable("the state store cannot be used: a fault")

        def server_fails() -> Exception:
            return psycopg.OperationalError("server closed the connection unexpectedly: a fault")

        def statement_is_cancelled() -> Exception:
            return psycopg.errors.QueryCanceled("canceling statement due to statement timeout: a fault")

        def connection_fails() -> Exception:
            return ConnectionFailed("the server is gone: a fault")

        def storage_fails() -> Exception:
            return StorageFailed("no room: a fault")

        calls: list[tuple[Any, str, str, Callable[[], Exception]]] = [
            (StateDatabase, "writing", "state written", state_fails),
            (StateDatabase, "reading", "state read", state_fails),
            (Manifest, "transaction", "manifest written", spool_fails),
            (endpoint, "session", "destination written", connection_fails),
            (SourceRecords, "transaction", "records written", connection_fails),
            (SourceRecords, "aside", "records written aside", connection_fails),
        ]
        for owner, name, call, error in calls:
            patch.setattr(owner, name, self.around_context(call, getattr(owner, name), error))
        calls = [
            (launch, "adjust", "publication adjusted", server_fails),
            (ddl, "install", "triggers made", server_fails),
            (ddl, "set_comment", "comment set", server_fails),
            (Storage, "remove", "files removed", storage_fails),
        ]
        for owner, name, call, error in calls:
            patch.setattr(owner, name, self.around(call, getattr(owner, name), error))
        calls = [
            (Storage, "write", "file written", storage_fails),
            (Storage, "put", "part of a file written", storage_fails),
        ]
        for owner, name, call, error in calls:
            patch.setattr(owner, name, self.around(call, getattr(owner, name), error, halfway=_write_half))
        calls = [
            (Manifest, "rows", "manifest read", spool_fails),
            (table_facts, "gather", "catalog read", server_fails),
            (Look, "take", "tables looked at", statement_is_cancelled),
            (slot, "describe", "slot looked at", statement_is_cancelled),
            (table_facts, "wal_position", "time looked at", statement_is_cancelled),
            (Snapshot, "open", "snapshot taken", connection_fails),
            (Snapshot, "ranges", "ranges read", connection_fails),
            (copier, "connect", "connection made", connection_fails),
            (awaited_writers, "writers", "writers waited for", server_fails),
            (ddl, "marked", "comments read", server_fails),
            (Storage, "names", "files listed", storage_fails),
            (Storage, "folders", "folders listed", storage_fails),
        ]
        for owner, name, call, error in calls:
            patch.setattr(owner, name, self.around(call, getattr(owner, name), error, effect=False))


def _write_half(storage: Storage, path: str, *_: Any) -> None:
    """As a process that is killed leaves it."""
    file = Path(storage.base, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp").write_bytes(b"half of it")


def _site() -> str | None:
    """The innermost functions of the package that decide to call, with the line in the first of them; None:
    the test does, or the capture."""
    frame: FrameType | None = sys._getframe(2)
    names: list[str] = []
    while frame is not None and len(names) < DEPTH:
        file = frame.f_code.co_filename
        if file.startswith(CAPTURE):
            return None
        if file.startswith(PACKAGE) and not file.startswith(PASSED_OVER, len(PACKAGE) + 1):
            line = "" if names else f"+{frame.f_lineno - frame.f_code.co_firstlineno}"
            names.append(f"{file[len(PACKAGE) + 1 : -3]}.{frame.f_code.co_name}{line}")
        frame = frame.f_back
    return " < ".join(names) or None

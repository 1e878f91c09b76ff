"""A capture that runs beside a test, in a thread (to look into) or a process (to kill)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.capture import state
from penstock.capture.process import Capture
from penstock.capture.spec import CaptureSpec
from penstock.model import Lsn
from penstock.model.errors import DecodingFailed
from penstock.spool import manifest
from penstock.spool.changes import Change, changes
from penstock.spool.manifest import Manifest
from tests.bed import Database

PUBLICATION = "p"


PEOPLE = (
    "create table people (id int primary key, name text, note text); create publication p for table people"
)


def spec_for(database: Database, spool: Path, **other: Any) -> CaptureSpec:
    """A quick capture of the publication `p`, acknowledged by the spool itself."""
    spec = CaptureSpec(
        source="test",
        conninfo=database.dsn,
        slot=f"penstock_{database.name}",
        publication=PUBLICATION,
        spool=spool,
        ack="spool",
        heartbeat=0,
        interval=0.02,
        retry_initial=0.1,
        retry_max=0.5,
    )
    return replace(spec, **other)


def eventually(check: Callable[[], object], seconds: float = 30) -> Any:
    """Wait until `check` gives something true, and return that."""
    until = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < until, f"not within {seconds} seconds"
        time.sleep(0.02)
    return found


class Running:
    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self.error: BaseException | None = None
        self._left = state.read(spec.spool)
        """What a capture before this one has left."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            Capture(self.spec, self._stop).run()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def fail(self, seconds: float = 30) -> BaseException:
        """What the capture ends with, by itself."""
        self._thread.join(seconds)
        assert self.error is not None, "the capture goes on"
        return self.error

    @property
    def state(self) -> str:
        return str(self._told().get("state"))

    def _told(self) -> dict[str, Any]:
        told = state.read(self.spec.spool)
        return told if told != self._left else {}

    def until_state(self, *wanted: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | BaseException | None:
            told = self._told()
            return told if told.get("state") in wanted else self.error

        told = eventually(reached)
        assert isinstance(told, dict), told
        return told

    def until_past(self, database: Database) -> None:
        """Until everything that has committed so far is in the spool."""
        ((sentinel,),) = database.query("select pg_logical_emit_message(true, 'sentinel', '')::text")
        wanted = Lsn.parse(sentinel)
        eventually(lambda: self.error or (manifest.position(self.spec.spool) or Lsn(0)) > wanted)
        if self.error:
            excuse_the_server(self.spec.spool)
            raise self.error


def excuse_the_server(spool: Path) -> None:
    """Whoever kills servers beside schema changes meets bugs of PostgreSQL's own: that it cannot decode
    its WAL any more is not our failure, and there is nothing left to compare. Only what the server itself
    calls an internal error is excused."""
    told = state.read(spool).get("error") or {}
    if told.get("kind") == DecodingFailed.__name__ and "(SQLSTATE XX" in told["reason"]:
        pytest.xfail(f"PostgreSQL cannot decode its own WAL: {told['reason']}")


@contextmanager
def running(spec: CaptureSpec) -> Iterator[Running]:
    capture = Running(spec)
    try:
        capture.until_state("streaming", "retrying", "failed")
        yield capture
    finally:
        capture.stop()


def captured(spool: Path) -> list[Change]:
    """Everything in a spool from which nothing was removed, but the sentinels of `until_past`."""
    with closing(Manifest.open(spool)) as opened:
        found = changes(opened, opened.retired, opened.position)
        return [change for change in found if not (change.after and change.after[0] == "sentinel")]

"""A process that holds a snapshot open while Spark's tasks read under it.

Spark plans a read in a Python process that may end as soon as the plan is made, so nothing there can keep a
transaction open. This process can. It ends, and the snapshot and the lock on the table with it, when

- Spark has ended: the process that started the planning one is watched;
- the readers are done: none has been seen for `AFTER_USE` seconds, or none came for `BEFORE_USE`;
- somebody waits for the lock, or the connection is lost.

A task that comes later than that finds the snapshot gone and says so; it never reads another one. What it
needs to know comes on standard input, not as arguments, which everybody could read.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, field

from penstock import logs
from penstock.model import TableId, children
from penstock.model.errors import PenstockError
from penstock.postgres.snapshot import CopyRange, Snapshot, Wanted
from penstock.spark.snapshot.fetch import session_name

BEFORE_USE = 600.0
AFTER_USE = 60.0
POLL = 1.0


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    conninfo: str = field(repr=False)
    table: TableId
    wanted: Wanted
    watched: int
    """The process with which Spark ends."""
    before_use: float = BEFORE_USE
    after_use: float = AFTER_USE
    withheld: frozenset[str] = frozenset()
    """Variables of the environment that the process is started without: they hold secrets."""


@dataclass(frozen=True, slots=True)
class Held:
    snapshot: str
    ranges: list[CopyRange]


_children: list[subprocess.Popen[bytes]] = []


def hold(conninfo: str, table: TableId, wanted: Wanted, withheld: frozenset[str]) -> Held:
    """Have a process hold a snapshot of the table. Called where Spark plans: its parent ends with Spark."""
    return ask(SnapshotRequest(conninfo, table, wanted, os.getppid(), withheld=withheld))


def ask(request: SnapshotRequest) -> Held:
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock.spark.snapshot.snapshot_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=children.environment(request.withheld),
        start_new_session=True,  # a signal to the planning process's group must not reach it
    )
    _children[:] = [other for other in _children if other.poll() is None] + [child]
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        pickle.dump(request, child.stdin)
        child.stdin.close()
        answer = child.stdout.read()
    if not answer:
        raise PenstockError(
            "the process that was to hold the snapshot ended", remedy="Its error output says why"
        )
    held = pickle.loads(answer)
    if isinstance(held, PenstockError):
        raise held
    assert isinstance(held, Held)
    return held


def main() -> int:
    logs.to_stderr()
    request: SnapshotRequest = pickle.load(sys.stdin.buffer)
    try:
        with Snapshot.open(request.conninfo, request.table) as snapshot:
            wanted = request.wanted
            ranges = snapshot.ranges(wanted.columns, wanted.row_filter, wanted.partition_bytes)
            _answer(Held(snapshot.name, ranges))
            _hold(snapshot, request)
    except PenstockError as error:
        _answer(error)
        return 1
    return 0


def _answer(answer: Held | PenstockError) -> None:
    """Write the answer and close the output: whoever asked reads to the end."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        pickle.dump(answer, out)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hold(snapshot: Snapshot, request: SnapshotRequest) -> None:
    name = session_name(snapshot.name)
    until = time.monotonic() + request.before_use
    while time.monotonic() < until and _exists(request.watched):
        time.sleep(POLL)
        snapshot.give_way()
        if snapshot.sessions(name):
            until = time.monotonic() + request.after_use


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    from penstock.spark.snapshot import snapshot_process  # its answers are pickled as of that module

    sys.exit(snapshot_process.main())

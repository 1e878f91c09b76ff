"""A backlog into PostgreSQL, against a native subscription between the same two servers.

Both sides are up and held while the backlog is written (`turns.py`). The clock runs from the moment a side
is released, when it has to connect and read the backlog from its slot, until the destination shows a mark
that was committed last. After each round both destinations are compared with the source.

`cold start` is the whole command `penstock run --once`, the start of Python and Spark in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench import rows as made
from bench.report import ROUNDS, Case
from bench.servers import Servers, two_servers
from bench.turns import Turn, Turns, taking_turns
from bench.usage import time_and_memory, watched

CHANGES = 1_000_000
WARM_UP = 20_000
"""Changes before the clock runs, as many as take the way that a million takes."""
AGAINST = "create subscription"


def cases(rows: int | None) -> Iterator[Case]:
    changes = rows or CHANGES
    with two_servers() as servers:
        with servers.at_source() as connection:
            for statement in (made.TABLE, made.INSERTS, made.MIXED):
                connection.execute(statement.encode())
        with taking_turns(servers, {"t": made.TABLE}) as turns:
            yield _case(f"{changes:,} inserts", turns, _Inserts(servers, changes))
            yield _case(f"{changes:,} mixed changes", turns, _Mixed(servers, changes))
            turns.ours.stop()
            yield _from_cold_start(f"{changes:,} inserts, cold start", turns, _Inserts(servers, changes))


@dataclass(frozen=True, slots=True)
class _Inserts:
    servers: Servers
    changes: int

    def prepare(self) -> None:
        """An empty table; and something to warm up with, that is emptied again."""
        with self.servers.at_source() as connection:
            connection.execute("truncate t")
            connection.execute("call inserts(1, %s)", (WARM_UP,))
            connection.execute("truncate t")

    def write(self) -> None:
        with self.servers.at_source() as connection:
            connection.execute("call inserts(1, %s)", (self.changes,))


@dataclass(frozen=True, slots=True)
class _Mixed:
    servers: Servers
    changes: int

    def prepare(self) -> None:
        """Three rows in the table for ten changes that will come, and something to warm up with."""
        size = max(self.changes * 3 // 10, WARM_UP)
        with self.servers.at_source() as connection:
            connection.execute("truncate t")
            connection.execute("call inserts(1, %s)", (size,))
            connection.execute("call mixed(%s)", (WARM_UP,))

    def write(self) -> None:
        with self.servers.at_source() as connection:
            connection.execute("call mixed(%s)", (self.changes,))


Backlog = _Inserts | _Mixed


def _case(case: str, turns: Turns, backlog: Backlog) -> Case:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        backlog.prepare()
        turns.settle()
        _analyze(turns)
        backlog.write()
        mark = turns.servers.mark()
        ours.append(turns.deliver(turns.ours, mark))
        theirs.append(turns.deliver(turns.native, mark))
        turns.settle()
    return _compared(case, backlog.changes, (ours, theirs))


def _from_cold_start(case: str, turns: Turns, backlog: _Inserts) -> Case:
    """Of a pipeline that was stopped."""
    servers, ours, theirs = turns.servers, [], []
    for _ in range(ROUNDS):
        backlog.prepare()
        backlog.write()
        mark = servers.mark()
        ours.append(_run_once(turns))
        theirs.append(turns.deliver(turns.native, mark))
        for side in turns.sides:
            servers.prove_equal(side.database, turns.tables)
    return _compared(case, backlog.changes, (ours, theirs))


def _run_once(turns: Turns) -> Turn:
    began = time.perf_counter()
    turns.ours.start(once=True)
    with watched(turns.servers, turns.ours.pid) as usage:
        turns.ours.wait()
    return Turn((), time.perf_counter() - began, usage)


def _analyze(turns: Turns) -> None:
    """Nobody else does: the servers run without autovacuum."""
    for side in turns.sides:
        with turns.servers.at_destination(side.database) as connection:
            connection.execute("analyze t")


def _compared(case: str, changes: int, turns: tuple[Sequence[Turn], Sequence[Turn]]) -> Case:
    ours, theirs = turns
    mine, other = (changes / median(turn.seconds for turn in side) for side in turns)
    return Case(
        case=case,
        ours=mine,
        theirs=other,
        unit="changes/s",
        ratio=mine / other,
        peak_memory_mb=round(max(turn.usage.ours_peak_mb for turn in ours), 1),
        against=AGAINST,
        notes=time_and_memory([turn.usage for turn in ours], [turn.usage for turn in theirs]),
    )

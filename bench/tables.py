"""200 tables with little traffic each, against a native subscription: `--rows` is the number of tables.

First until all of them are copied and follow the stream: ours from the first table's phase `data_sync` to the
last one's `ready`, and as the whole command with the start of Spark in it; theirs from `create subscription`
on. Then five rows a second, spread over all tables: from commit to visible, and the CPU seconds a minute of
everything that a side has running, at both servers too. Before all that, what a look at 1,000 tables costs
the source's server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from psycopg import sql

from bench import looks
from bench.pipeline import Pipeline
from bench.report import Case, alternate
from bench.servers import LOOK, MARK, NeverArrived, Servers, two_servers
from bench.subscription import Subscription
from bench.turns import Turn, Turns, taking_turns
from bench.usage import Usage, time_and_memory, watched
from penstock.postgres.connection import Connection

TABLES = 200
ROWS = 100
"""Of each table, at first."""
PER_SECOND = 5
SECONDS = 30.0
"""Of a turn."""
AGAINST = "create subscription"


def cases(rows: int | None) -> Iterator[Case]:
    tables = {f"t_{number:04}": _made(f"t_{number:04}") for number in range(1, (rows or TABLES) + 1)}
    with two_servers() as servers:
        yield from looks.cases(servers, rows or looks.TABLES)
        with servers.at_source() as connection:
            for name, statement in tables.items():
                connection.execute(statement.encode())
                connection.execute(
                    sql.SQL(
                        "insert into {} select i, md5(i::text), now() from generate_series(1, {}) i"
                    ).format(sql.Identifier(name), sql.Literal(ROWS))
                )
        yield from _Copies(servers, tables).compared()
        with taking_turns(servers, tables) as turns:
            yield from _followed(turns, _Traffic(servers, list(tables)))


def _made(name: str) -> str:
    return f"create table {name} (id bigint primary key, a text, at timestamptz)"


@dataclass(frozen=True, slots=True)
class _Copies:
    servers: Servers
    tables: dict[str, str]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def compared(self) -> Iterator[Case]:
        ours, theirs = alternate(self._ours, self._native)
        notes = time_and_memory([turn.usage for turn in ours], [turn.usage for turn in theirs])
        peak = round(max(turn.usage.ours_peak_mb for turn in ours), 1)
        other = median(turn.seconds for turn in theirs)
        name = f"{len(self.tables):,} tables copied"
        copying = median(turn.figures[0] for turn in ours)
        yield Case(name, copying, other, "s", copying / other, peak, AGAINST, notes)
        whole = median(turn.seconds for turn in ours)
        yield Case(f"{name}, from a cold start", whole, other, "s", whole / other, peak, AGAINST)

    def _ours(self) -> Turn:
        pipeline = Pipeline(self.servers, f"ours_{next(self.numbers)}")
        self.servers.make_database(pipeline.database)
        try:
            began = time.perf_counter()
            pipeline.start()
            with watched(self.servers, pipeline.pid) as usage:
                pipeline.wait_until_ready(len(self.tables) + 1)
            seconds = time.perf_counter() - began
            pipeline.hold()
            self.servers.prove_equal(pipeline.database, list(self.tables))
            return Turn((pipeline.copied().seconds,), seconds, usage)
        finally:
            pipeline.remove()

    def _native(self) -> Turn:
        self.servers.make_database("native", MARK, *self.tables.values())
        subscription = Subscription(self.servers, ("mark", *self.tables))
        try:
            with watched(self.servers) as usage:
                began = time.perf_counter()
                subscription.create()
                subscription.wait_until_ready()
                seconds = time.perf_counter() - began
            self.servers.prove_equal("native", list(self.tables))
            return Turn((), seconds, usage)
        finally:
            subscription.remove()


def _followed(turns: Turns, traffic: _Traffic) -> Iterator[Case]:
    ours, theirs = alternate(
        lambda: turns.take(turns.ours, traffic.delays),
        lambda: turns.take(turns.native, traffic.delays),
    )
    turns.settle()
    name = f"{PER_SECOND} rows/s over {len(traffic.tables):,} tables"
    peak = round(max(turn.usage.ours_peak_mb for turn in ours), 1)
    mine, other = (median(turn.figures[0] for turn in side) for side in (ours, theirs))
    notes = time_and_memory([turn.usage for turn in ours], [turn.usage for turn in theirs])
    yield Case(f"{name}: median delay", mine, other, "ms", mine / other, peak, AGAINST, notes)
    mine, other = (
        median(_cpu_a_minute(turn.usage, turn.seconds) for turn in side) for side in (ours, theirs)
    )
    yield Case(f"{name}: CPU", mine, other, "s CPU/min", mine / other, peak, AGAINST)


def _cpu_a_minute(usage: Usage, seconds: float) -> float:
    return usage.cpu_seconds * 60 / seconds


@dataclass(frozen=True, slots=True)
class _Row:
    table: str
    id: int
    at: float
    """When it was committed."""


@dataclass(frozen=True, slots=True)
class _Traffic:
    servers: Servers
    tables: Sequence[str]
    ids: Iterator[int] = field(default_factory=lambda: count(ROWS + 1))

    def delays(self, database: str) -> Sequence[float]:
        """The median in ms, once all is delivered that was written before."""
        self.servers.wait_for(self.servers.mark(), database)
        delays: list[float] = []
        waiting: deque[_Row] = deque()
        due = [time.monotonic() + number / PER_SECOND for number in range(int(SECONDS * PER_SECOND))]
        until = due[-1] + 120
        with self.servers.at_source() as source, self.servers.at_destination(database) as destination:
            while due or waiting:
                if due and time.monotonic() >= due[0]:
                    due.pop(0)
                    waiting.append(self._write(source))
                delays += _arrived(destination, waiting)
                if time.monotonic() > until:
                    raise NeverArrived(f"{len(waiting)} rows have not arrived in {database}")
                time.sleep(LOOK)
        return (median(delays),)

    def _write(self, source: Connection) -> _Row:
        number = next(self.ids)
        table = self.tables[number * 7919 % len(self.tables)]
        statement = sql.SQL("insert into {} values (%s, 'x', now())").format(sql.Identifier(table))
        source.execute(statement, (number,))
        return _Row(table, number, time.monotonic())


def _arrived(destination: Connection, waiting: deque[_Row]) -> Iterator[float]:
    """The delays of those that are visible now, taken from the front.

    Rows become visible in the order of their commits: only the oldest has to be looked for.
    """
    while waiting:
        row = waiting[0]
        statement = sql.SQL("select 1 from {} where id = %s").format(sql.Identifier(row.table))
        if destination.execute(statement, (row.id,)).fetchone() is None:
            return
        waiting.popleft()
        yield 1000 * (time.monotonic() - row.at)

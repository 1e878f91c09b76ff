"""From commit to visible at a steady 2,000 changes a second, against a native subscription.

A writer commits a hundred transactions a second, each of ten inserts and ten updates, whether the other end
keeps up or not. Somebody looks at the destination every few milliseconds; a transaction is visible at the
first look that shows its last row. Both clocks are this machine's. The row's own time is taken just before
the commit, which adds about a millisecond to both sides.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median, quantiles

from bench.report import Case, alternate
from bench.servers import LOOK, NeverArrived, Servers, two_servers
from bench.turns import Turn, Turns, taking_turns
from bench.usage import time_and_memory

CHANGES = 40_000
PER_SECOND = 2_000
PER_TRANSACTION = 20
INSERTS = PER_TRANSACTION // 2
INTERVALS = ("0s", "1s")

TABLE = "create table ticks (id bigint primary key, at timestamptz, a int, b text)"
TICK = f"""
create function tick(first bigint) returns void language sql as $$
    update ticks set a = a + 1 where id >= first - {INSERTS} and id < first;
    insert into ticks
    select i, clock_timestamp(), 0, md5(i::text) from generate_series(first, first + {INSERTS - 1}) i;
$$
"""


def cases(rows: int | None) -> Iterator[Case]:
    with two_servers() as servers:
        with servers.at_source() as connection:
            connection.execute(TABLE.encode())
            connection.execute(TICK.encode())
        load = Ticks(servers, max((rows or CHANGES) // PER_TRANSACTION, 10))
        for interval in INTERVALS:
            with taking_turns(servers, {"ticks": TABLE}, interval) as turns:
                yield from _measured(interval, turns, load)


def _measured(interval: str, turns: Turns, load: Ticks) -> Iterator[Case]:
    ours, theirs = alternate(
        lambda: turns.take(turns.ours, load.delays),
        lambda: turns.take(turns.native, load.delays),
    )
    turns.settle()
    notes = time_and_memory([turn.usage for turn in ours], [turn.usage for turn in theirs])
    for number, what in enumerate(("median", "95 of 100 within")):
        mine, other = (median(turn.figures[number] for turn in side) for side in (ours, theirs))
        yield Case(
            case=f"interval {interval}: {what}",
            ours=mine,
            theirs=other,
            unit="ms",
            ratio=mine / other,
            peak_memory_mb=_peak(ours),
            against="create subscription",
            notes=() if number else notes,
        )


def _peak(turns: Sequence[Turn]) -> float:
    return round(max(turn.usage.ours_peak_mb for turn in turns), 1)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Transactions at a steady pace, and how long each took to be visible."""

    servers: Servers
    transactions: int
    """A turn has."""
    first_ids: Iterator[int] = field(default_factory=lambda: count(1, INSERTS))

    def delays(self, database: str) -> Sequence[float]:
        """Median and 95th percentile, in ms, when all is delivered that was written before."""
        self.servers.wait_for(self.servers.mark(), database)
        eye = _Eye(self.servers, database)
        first = self._write()
        last = first + self.transactions * INSERTS - 1
        seen = eye.until(last)
        with self.servers.at_source() as connection:
            written = connection.execute(
                "select id, extract(epoch from at)::float8 from ticks where id >= %s and (id - %s) %% %s = 0",
                (first, first, INSERTS),
            ).fetchall()
        delays = [1000 * (_first_seen(seen, start + INSERTS - 1) - at) for start, at in written]
        return median(delays), quantiles(delays, n=20)[-1]

    def _write(self) -> int:
        """At the pace; where a commit is late, the next ones hurry. Returns the first id."""
        first = 0
        with self.servers.at_source() as connection:
            begin = time.monotonic()
            for number in range(self.transactions):
                time.sleep(max(0.0, begin + number * PER_TRANSACTION / PER_SECOND - time.monotonic()))
                start = next(self.first_ids)
                first = first or start
                connection.execute("select tick(%s)", (start,))
            seconds = time.monotonic() - begin
        reached = self.transactions * PER_TRANSACTION / seconds
        if self.transactions >= 100 and reached < 0.9 * PER_SECOND:
            raise NeverArrived(f"the writer came to {reached:.0f} changes a second only, on this machine")
        return first


Looks = Sequence[tuple[int, float]]
"""The last id that was visible, and when; in order."""


class _Eye:
    """Looks at the destination all the time, from a thread of its own."""

    def __init__(self, servers: Servers, database: str) -> None:
        self._servers, self._database = servers, database
        self._looks: list[tuple[int, float]] = []
        self._until: int | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def until(self, last: int) -> Looks:
        """Go on until that id is visible."""
        self._until = last
        self._thread.join(120)
        if self._thread.is_alive():
            raise NeverArrived(f"two minutes after the last commit {self._database} does not have it")
        return self._looks

    def _look(self) -> None:
        with self._servers.at_destination(self._database) as connection:
            highest = -1
            while self._until is None or highest < self._until:
                found = connection.execute("select coalesce(max(id), 0) from ticks").fetchone()
                assert found is not None
                if found[0] > highest:
                    highest = int(found[0])
                    self._looks.append((highest, time.time()))
                time.sleep(LOOK)


def _first_seen(looks: Looks, wanted: int) -> float:
    return looks[bisect_left(looks, wanted, key=lambda look: look[0])][1]

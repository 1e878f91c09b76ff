"""A stream into PostgreSQL while 1,000 requests a second are answered, against the same without requests.

One pipeline delivers changes at a steady pace (`latency.py`), from commit to visible, and then backlogs that
are written while it is held; both alternately with and without `/metrics` and `/status` being asked for by
another process (`http_load.py`). On two cores, which pipeline and servers keep busy, whoever asks and whoever
answers takes time from them; the pipeline's HTTP process is `nice`, the process that asks is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from bench import latency
from bench import rows as made
from bench.pipeline import Pipeline
from bench.report import Case, alternate
from bench.servers import NeverArrived, Servers, two_servers
from bench.usage import Usage, watched

CHANGES = 1_000_000
WARM_UP = 20_000
REQUESTS_PER_SECOND = 1_000


def cases(rows: int | None) -> Iterator[Case]:
    changes = rows or CHANGES
    with two_servers() as servers:
        with servers.at_source() as connection:
            for statement in (latency.TABLE, latency.TICK, made.TABLE, made.INSERTS):
                connection.execute(statement.encode())
        servers.make_database("ours")
        pipeline = Pipeline(servers, interval="0s")
        try:
            pipeline.start()
            pipeline.wait_until_ready(3)
            bed = _Bed(servers, pipeline)
            yield bed.steady(max(changes // 25, 200))
            pipeline.hold()
            bed.deliver(WARM_UP, 0)
            yield bed.backlogs(changes)
            servers.prove_equal(pipeline.database, ("mark", "t", "ticks"))
        finally:
            pipeline.remove()


@dataclass(frozen=True, slots=True)
class _Turn:
    figure: float
    seconds: float
    usage: Usage
    load: dict[str, float]


@dataclass(slots=True)
class _Bed:
    servers: Servers
    pipeline: Pipeline
    _last: int = field(default=0)

    def steady(self, changes: int) -> Case:
        ticks = latency.Ticks(self.servers, changes // latency.PER_TRANSACTION)
        ticks.delays(self.pipeline.database)  # to warm up
        turns = alternate(
            lambda: self._ticking(ticks, REQUESTS_PER_SECOND),
            lambda: self._ticking(ticks, 0),
        )
        return _compared(f"{latency.PER_SECOND:,} changes/s, median delay", "ms", *turns)

    def _ticking(self, ticks: latency.Ticks, requests: int) -> _Turn:
        with watched(self.servers, self.pipeline.pid) as usage, _load(self.pipeline, requests) as load:
            began = time.perf_counter()
            delay, _ = ticks.delays(self.pipeline.database)
            seconds = time.perf_counter() - began
        return _Turn(delay, seconds, usage, load)

    def backlogs(self, changes: int) -> Case:
        turns = alternate(
            lambda: self.deliver(changes, REQUESTS_PER_SECOND),
            lambda: self.deliver(changes, 0),
        )
        return _compared(f"{changes:,} inserts", "rows/s", *turns)

    def deliver(self, changes: int, requests: int) -> _Turn:
        """Write a backlog, and let it be delivered."""
        with self.servers.at_source() as connection:
            connection.execute("call inserts(%s, %s)", (self._last + 1, changes))
        self._last += changes
        mark = self.servers.mark()
        self.pipeline.check()
        with watched(self.servers, self.pipeline.pid) as usage, _load(self.pipeline, requests) as load:
            began = time.perf_counter()
            self.pipeline.release()
            self.servers.wait_for(mark, self.pipeline.database)
            seconds = time.perf_counter() - began
        self.pipeline.hold()
        return _Turn(changes / seconds, seconds, usage, load)


def _compared(case: str, unit: str, loaded: Sequence[_Turn], alone: Sequence[_Turn]) -> Case:
    ours, theirs = (median(turn.figure for turn in side) for side in (loaded, alone))
    answered = median(turn.load["answered"] / turn.load["seconds"] for turn in loaded)
    last, other = loaded[-1], alone[-1]
    return Case(
        case=f"{case}, {answered:,.0f} requests/s",
        ours=ours,
        theirs=theirs,
        unit=unit,
        ratio=ours / theirs,
        peak_memory_mb=round(max(turn.usage.ours_peak_mb for turn in loaded), 1),
        against="the same without requests",
        notes=(
            f"CPU seconds of {last.seconds:.1f} with requests: {last.usage.cpu_line()}",
            f"CPU seconds of {other.seconds:.1f} without: {other.usage.cpu_line()}",
            f"who asked took {last.load['cpu']:.1f} CPU seconds in {last.load['seconds']:.1f}",
        ),
    )


@contextmanager
def _load(pipeline: Pipeline, requests: int) -> Iterator[dict[str, float]]:
    """Have so many requests a second sent meanwhile; what became of them is known afterwards."""
    told: dict[str, float] = {}
    if not requests:
        yield told
        return
    command = [sys.executable, "-m", "bench.http_load", pipeline.dashboard, str(requests)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it is connected
        yield told
        said, _ = process.communicate()
        if process.returncode:
            raise NeverArrived("the requests were not answered")
        told |= json.loads(said)
    finally:
        process.kill()
        process.wait()

"""A backlog into PostgreSQL while 1,000 requests a second are answered, against the same without requests.

One pipeline, held while each backlog is written, delivers it alternately with and without `/metrics` and
`/status` being asked for by another process (`http_load.py`). On two cores, which pipeline and servers
keep busy, whoever asks and whoever answers takes time from them; the pipeline's HTTP process is `nice`, the
process that asks is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from bench import rows as made
from bench.pipeline import Pipeline
from bench.report import ROUNDS, Case
from bench.servers import NeverArrived, Servers, two_servers
from bench.usage import Usage, watched

CHANGES = 1_000_000
WARM_UP = 20_000
REQUESTS_PER_SECOND = 1_000


def cases(rows: int | None) -> Iterator[Case]:
    changes = rows or CHANGES
    with two_servers() as servers:
        with servers.at_source() as connection:
            for statement in (made.TABLE, made.INSERTS):
                connection.execute(statement.encode())
        servers.make_database("ours")
        pipeline = Pipeline(servers)
        try:
            pipeline.start()
            pipeline.wait_until_ready(2)
            pipeline.hold()
            bed = _Bed(servers, pipeline, changes)
            bed.deliver(WARM_UP, 0)
            yield bed.measured()
            servers.prove_equal(pipeline.database, ("mark", "t"))
        finally:
            pipeline.remove()


@dataclass(frozen=True, slots=True)
class _Turn:
    seconds: float
    usage: Usage
    load: dict[str, float]


@dataclass(slots=True)
class _Bed:
    servers: Servers
    pipeline: Pipeline
    changes: int
    _last: int = field(default=0)

    def measured(self) -> Case:
        loaded, alone = [], []
        for _ in range(ROUNDS):
            loaded.append(self.deliver(self.changes, REQUESTS_PER_SECOND))
            alone.append(self.deliver(self.changes, 0))
        rates = [median(self.changes / turn.seconds for turn in side) for side in (loaded, alone)]
        last = loaded[-1]
        answered = median(turn.load["answered"] / turn.load["seconds"] for turn in loaded)
        return Case(
            case=f"{self.changes:,} inserts, {answered:,.0f} requests/s answered",
            ours=rates[0],
            theirs=rates[1],
            unit="rows/s",
            ratio=rates[0] / rates[1],
            peak_memory_mb=round(max(turn.usage.ours_peak_mb for turn in loaded), 1),
            against="the same without requests",
            notes=(
                f"CPU seconds of {last.seconds:.1f} with requests: {last.usage.cpu_line()}",
                f"CPU seconds of {alone[-1].seconds:.1f} without: {alone[-1].usage.cpu_line()}",
                f"who asked took {last.load['cpu']:.1f} CPU seconds in {last.load['seconds']:.1f}",
            ),
        )

    def deliver(self, changes: int, requests: int) -> _Turn:
        """Write a backlog, and let it be delivered."""
        with self.servers.at_source() as connection:
            connection.execute("call inserts(%s, %s)", (self._last + 1, changes))
        self._last += changes
        mark = self.servers.mark()
        self.pipeline.check()
        with watched(self.servers, self.pipeline.pid) as usage:
            began = time.perf_counter()
            self.pipeline.release()
            with _load(self.pipeline.dashboard, requests) as load:
                self.servers.wait_for(mark, self.pipeline.database)
                seconds = time.perf_counter() - began
        self.pipeline.hold()
        return _Turn(seconds, usage, load)


@contextmanager
def _load(url: str, requests: int) -> Iterator[dict[str, float]]:
    """Have so many requests a second sent meanwhile; what became of them is known afterwards."""
    told: dict[str, float] = {}
    if not requests:
        yield told
        return
    command = [sys.executable, "-m", "bench.http_load", url, str(requests)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield told
        said, _ = process.communicate()
        if process.returncode:
            raise NeverArrived("the requests were not answered")
        told |= json.loads(said)
    finally:
        process.kill()
        process.wait()

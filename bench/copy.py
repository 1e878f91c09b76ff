"""The initial copy of a table, against `psql COPY | psql COPY` and against Spark's JDBC source and sink.

Ours is `penstock run --once` into an empty database, each time a new pipeline; the clock runs from the
table's phase `data_sync` to `ready`, as the store has it. The others write into a table that is there, with
its primary key. `whole command` has the start of Python and Spark in it. The JDBC copy runs on a Spark of
the same size, with as many partitions as ours; its clock runs from when Spark is up, too.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from bench import rows as made
from bench.jdbc import JdbcCopy, Unavailable, jdbc_url
from bench.pipeline import CORES, Pipeline
from bench.report import Case, alternate
from bench.servers import SOURCE, Servers, two_servers
from bench.usage import Usage, time_and_memory, watched

ROWS = 5_000_000
PARTITION_BYTES = 64_000_000
"""The default of `copy.partition_mb`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Of one side, once: seconds of the copy, and of everything."""

    copying: float
    whole: float
    usage: Usage = field(default_factory=Usage)


def cases(rows: int | None) -> Iterator[Case]:
    amount = rows or ROWS
    with two_servers() as servers:
        with servers.at_source() as connection:
            connection.execute(made.TABLE.encode())
            connection.execute(made.INSERTS.encode())
            connection.execute("call inserts(1, %s)", (amount,))
            connection.execute("vacuum analyze t")
        yield from _Copies(servers, amount).compared()


@dataclass(frozen=True, slots=True)
class _Copies:
    servers: Servers
    rows: int
    missing: list[str] = field(default_factory=list)
    """Why there is no JDBC copy to compare with."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def compared(self) -> Iterator[Case]:
        ours, psql, jdbc = alternate(self._ours, self._psql, self._jdbc)
        notes = time_and_memory([run.usage for run in ours], [run.usage for run in psql])
        notes += tuple(f"the copy by Spark's JDBC was left out: {reason}" for reason in self.missing[:1])
        peak = max(run.usage.ours_peak_mb for run in ours)
        copying = median(run.copying for run in ours)
        whole = median(run.whole for run in ours)
        pipe = median(run.copying for run in psql)
        name = f"{self.rows:,} rows"
        yield self._case(name, (copying, pipe), "psql copy | psql copy", peak, notes)
        yield self._case(f"{name}, whole command", (whole, pipe), "psql copy | psql copy", peak)
        if not self.missing:
            yield self._case(name, (copying, median(run.copying for run in jdbc)), "Spark JDBC", peak)

    def _case(
        self, case: str, seconds: tuple[float, float], against: str, peak: float, notes: tuple[str, ...] = ()
    ) -> Case:
        mine, other = (self.rows / taken for taken in seconds)
        return Case(case, mine, other, "rows/s", mine / other, round(peak, 1), against, notes)

    def _ours(self) -> Run:
        pipeline = Pipeline(self.servers, f"ours_{next(self.numbers)}")
        self.servers.make_database(pipeline.database)
        try:
            began = time.perf_counter()
            pipeline.start(once=True)
            with watched(self.servers, pipeline.pid) as usage:
                pipeline.wait()
            whole = time.perf_counter() - began
            self.servers.prove_equal(pipeline.database, ["t"])
            return Run(pipeline.copied("t").seconds, whole, usage)
        finally:
            pipeline.remove()

    def _psql(self) -> Run:
        servers = self.servers
        servers.make_database("psql", made.TABLE)
        program = str(servers.source.bin / "psql")
        read = [program, "-X", "-d", SOURCE, "-c", "copy t to stdout"]
        write = [program, "-X", "-q", "-d", "psql", "-c", "copy t from stdin"]
        at_source, at_destination = servers.source.environment(), servers.destination.environment()
        with watched(servers) as usage:
            began = time.perf_counter()
            with subprocess.Popen(read, stdout=subprocess.PIPE, env=at_source) as reader:
                subprocess.run(write, stdin=reader.stdout, check=True, env=at_destination)
            seconds = time.perf_counter() - began
        servers.prove_equal("psql", ["t"])
        servers.drop_database("psql")
        return Run(seconds, seconds, usage)

    def _jdbc(self) -> Run:
        if self.missing:
            return Run(0, 0)
        servers = self.servers
        servers.make_database("jdbc", made.TABLE)
        copy = JdbcCopy(
            source=jdbc_url(servers.source, SOURCE),
            destination=jdbc_url(servers.destination, "jdbc"),
            table="t",
            rows=self.rows,
            partitions=self._partitions(),
            cores=CORES,
        )
        began = time.perf_counter()
        try:
            seconds = copy.run()
        except Unavailable as reason:
            self.missing.append(str(reason))
            return Run(0, 0)
        whole = time.perf_counter() - began
        servers.prove_equal("jdbc", ["t"])
        servers.drop_database("jdbc")
        return Run(seconds, whole)

    def _partitions(self) -> int:
        with self.servers.at_source() as connection:
            found = connection.execute("select pg_table_size('t')").fetchone()
        assert found is not None
        return max(CORES, -(-int(found[0]) // PARTITION_BYTES))

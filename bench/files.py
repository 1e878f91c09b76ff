"""Files: a full copy against `psql COPY | gzip`, and changes into files against pg_recvlogical's rate.

The copy is `penstock run --once` with a destination of files; the clock runs from the table's phase
`data_sync` to `ready`, as the store has it. Its file is then loaded into a table and compared to the source.
Changes: a pipeline that is up is held while the backlog is written (`pipeline.py`); the clock runs from its
release until the registry has the last of it. pg_recvlogical reads the same backlog to /dev/null.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from bench.backlog import FILL, RECEIVER, TABLE, Backlog
from bench.pipeline import Pipeline
from bench.report import ROUNDS, Case, alternate
from bench.servers import GIVEN_UP, SOURCE, NeverArrived, Servers, two_servers
from bench.usage import Usage, time_and_memory, watched
from penstock.postgres.connection import Connection

ROWS = 5_000_000
CHANGES = 1_000_000
WARM_UP = 20_000
"""Changes before the clock runs."""


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    size: int
    usage: Usage = field(default_factory=Usage)


def cases(rows: int | None) -> Iterator[Case]:
    amount, changes = rows or ROWS, rows or CHANGES
    with two_servers() as servers:
        with servers.at_source() as connection:
            connection.execute(TABLE.encode())
            connection.execute(FILL.format(first=1, last=amount).encode())
            connection.execute("vacuum analyze t")
        yield from _Copies(servers, amount).compared()
        with servers.at_source() as connection:
            connection.execute("truncate t")
        yield _Changes(servers, changes).compared()


@dataclass(frozen=True, slots=True)
class _Copies:
    servers: Servers
    rows: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="penstock-bench-", dir="/tmp")))
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def compared(self) -> Iterator[Case]:
        ours, nine, six = alternate(self._ours, lambda: self._gzip(9), lambda: self._gzip(6))
        for level, theirs in ((9, nine), (6, six)):
            mine, other = (self.rows / median(run.seconds for run in side) for side in (ours, theirs))
            notes = time_and_memory([run.usage for run in ours], [run.usage for run in theirs])
            size = f"our file has {ours[0].size / 1e6:.1f} MB, theirs {theirs[0].size / 1e6:.1f} MB"
            yield Case(
                f"full copy of {self.rows:,} rows",
                mine,
                other,
                "rows/s",
                mine / other,
                round(max(run.usage.ours_peak_mb for run in ours), 1),
                f"psql copy | gzip -{level}",
                (*notes, f"{size}: {ours[0].size / theirs[0].size:.2f}"),
            )

    def _ours(self) -> Run:
        number = next(self.numbers)
        pipeline = Pipeline(self.servers, f"files_{number}", files=True)
        try:
            pipeline.start(once=True)
            with watched(self.servers, pipeline.pid) as usage:
                pipeline.wait()
            (file,) = pipeline.files.rglob("public.t/*/full_reload.csv.gz")
            size = file.stat().st_size
            if number == ROUNDS:
                self._prove(file)
            return Run(pipeline.copied("t").seconds, size, usage)
        finally:
            pipeline.remove()

    def _prove(self, file: Path) -> None:
        """What it loads as is what the source has."""
        servers = self.servers
        servers.make_database("loaded", TABLE)
        program = str(servers.source.bin / "psql")
        load = "copy t from stdin (format csv, header match)"
        with subprocess.Popen(["gzip", "-dc", file], stdout=subprocess.PIPE) as reader:
            subprocess.run(
                [program, "-X", "-q", "-d", "loaded", "-c", load],
                stdin=reader.stdout,
                env=servers.destination.environment(),
                check=True,
            )
        servers.prove_equal("loaded", ["t"])
        servers.drop_database("loaded")

    def _gzip(self, level: int) -> Run:
        program = str(self.servers.source.bin / "psql")
        read = [program, "-X", "-d", SOURCE]
        read += ["-c", "copy t to stdout (format csv, header)"]
        environment = self.servers.source.environment()
        file = self.folder / "theirs.csv.gz"
        with watched(self.servers) as usage, file.open("wb") as sink:
            began = time.perf_counter()
            with subprocess.Popen(read, stdout=subprocess.PIPE, env=environment) as reader:
                subprocess.run(["gzip", f"-{level}"], stdin=reader.stdout, stdout=sink, check=True)
            seconds = time.perf_counter() - began
        size = file.stat().st_size
        file.unlink()
        return Run(seconds, size, usage)


@dataclass(frozen=True, slots=True)
class _Changes:
    servers: Servers
    changes: int

    def compared(self) -> Case:
        ours, theirs, usages, received = [], [], [], []
        pipeline = Pipeline(self.servers, "changes", files=True)
        backlog = Backlog(self.servers, pipeline.publication)
        try:
            pipeline.start()
            pipeline.wait_until_ready(2)
            self._deliver(pipeline, backlog, WARM_UP)
            for _ in range(ROUNDS):
                with watched(self.servers, pipeline.pid) as usage:
                    ours.append(self._deliver(pipeline, backlog, self.changes))
                usages.append(usage)
                pipeline.hold()
                with watched(self.servers) as usage:
                    theirs.append(backlog.receive())
                received.append(usage)
                pipeline.release()
        finally:
            backlog.drop_slot()
            pipeline.remove()
        mine, other = (self.changes / median(side) for side in (ours, theirs))
        return Case(
            f"{self.changes:,} changes into files",
            mine,
            other,
            "rows/s",
            mine / other,
            round(max(usage.ours_peak_mb for usage in usages), 1),
            RECEIVER,
            time_and_memory(usages, received),
        )

    def _deliver(self, pipeline: Pipeline, backlog: Backlog, changes: int) -> float:
        """Seconds until the registry has all of a backlog that came while the pipeline was held."""
        pipeline.hold()
        backlog.write(changes)
        with self.servers.at_source() as connection:
            before = _registered(connection)
            began = time.perf_counter()
            pipeline.release()
            while _registered(connection) < before + changes:
                if time.perf_counter() - began > GIVEN_UP:
                    raise NeverArrived("the changes are not in the registry")
                time.sleep(0.01)
        return time.perf_counter() - began


def _registered(connection: Connection) -> int:
    row = connection.execute(
        "select coalesce(sum(row_count), 0) from cdc_registry.file_log"
        " where table_name = 'public.t' and file_type = 'streaming'"
    ).fetchone()
    assert row is not None
    return int(row[0])

"""The demo: a shop under load in an embedded PostgreSQL, followed through Spark, proven equal at the end.

Everything is the real thing: the server, the slot, the capture in its own process, the Structured Streaming
query with its checkpoint. What the query wrote is read back at the end, the tables are rebuilt from it
change by change, and compared with the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.capture import launch
from penstock.capture.heartbeat import mark
from penstock.capture.launch import CaptureProcess
from penstock.config import Config, SourceConfig, load
from penstock.demo import shop
from penstock.demo.proof import Checksum, Rebuild, checksums
from penstock.embedded.postgres import PostgresServer
from penstock.model import Lsn, TableId, TableName, TableSchema
from penstock.postgres.connection import connect
from penstock.spark.session import LOG, session
from penstock.spool.changes import Change
from penstock.spool.manifest import Manifest
from penstock.spool.segment import BeforeKind, Op

Proven = Callable[[list["Verdict"]], None]
"""Is called with the proof while everything still runs."""

Held = Callable[[], AbstractContextManager[None]]
"""Signals wait while a server is started: one that is half started would go on without us."""

_CONFIG = """\
# The demo's pipeline. While it runs: penstock tail {file}
pipeline: demo
sources:
  - name: shop
    dsn: {dsn}
    tables: {{include: ["public.*"]}}
spool: {{path: {spool}}}
"""


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """What there is to see while it runs."""

    seconds: float
    transactions: int
    changes: int
    batches: int
    batch_ms: int
    behind_bytes: int
    status: Mapping[str, Any] | None = None
    """Of the pipeline, if there is one, with its rates."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A table at the source and as the stream tells it."""

    table: TableName
    source: Checksum
    stream: Checksum

    @property
    def equal(self) -> bool:
        return self.source == self.stream


def write_private(file: Path, text: str) -> None:
    """Write a file with a password in it: nobody else can read it."""
    file.touch(0o600)
    file.chmod(0o600)  # it may have been there
    file.write_text(text)


class Demo:
    dashboard: str | None = None
    """A stream of Spark's own has no pipeline to show."""
    files: Path | None = None

    def __init__(self, folder: Path, tell: Callable[[str], None], held: Held = nullcontext) -> None:
        self.folder = folder.absolute()
        self.file = self.folder / "shop.yaml"
        self._tell = tell
        self._held = held
        self._server = PostgresServer(self.folder / "postgres")
        self._problems: list[str] = []

    def run(self, seconds: float, rows: int, show: Callable[[DemoProgress], None], proven: Proven) -> None:
        self._tell("Starting PostgreSQL")
        try:
            with self._held():
                self._server.start()
            config, source = self._configure()
            with connect(source.conninfo()) as connection:
                shop.create(connection)
            launch.prepare(source)
            self._tell("Starting capture")
            with closing(CaptureProcess(launch.spec_of(config, source))) as capture:
                capture.wait_until_captured()
                self._tell("Starting Spark")
                log = launch.folder_of(config) / LOG
                spark = session(config.spark.master, config.spark.conf, "penstock demo", log)
                try:
                    with _stopped_after(spark, self._follow(spark)) as query:
                        self._trade(source, query, capture, (seconds, rows), show)
                    self._tell("Comparing source and stream")
                    proven(self._prove(spark, source))
                finally:
                    spark.stop()
        finally:
            self._server.stop()

    def _configure(self) -> tuple[Config, SourceConfig]:
        spool = self.folder / "spool"
        write_private(self.file, _CONFIG.format(file=self.file, dsn=self._server.url(), spool=spool))
        config = load(self.file)
        return config, config.sources[0]

    def _follow(self, spark: SparkSession) -> StreamingQuery:
        changes = spark.readStream.format("postgres_cdc").option("config", str(self.file)).load()
        return (
            changes.writeStream.format("parquet")
            .option("path", str(self.folder / "changes"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )

    def _trade(
        self,
        source: SourceConfig,
        query: StreamingQuery,
        capture: CaptureProcess,
        amount: tuple[float, int],
        show: Callable[[DemoProgress], None],
    ) -> None:
        seconds, rows = amount
        with connect(source.conninfo()) as connection, closing(self._manifest()) as manifest:
            shop.seed(connection, rows)
            load = shop.Load(source.conninfo(), rate=200)
            load.start()
            begin = time.monotonic()
            seen: dict[int, Any] = {}
            while time.monotonic() < begin + seconds:
                capture.check()
                if not query.isActive:
                    break
                time.sleep(0.25)
                show(self._progress(query, seen, load, time.monotonic() - begin, manifest))
            load.stop()
            last = mark(connection)
            while manifest.position <= last:
                capture.check()
                time.sleep(0.05)
            query.processAllAvailable()
            show(self._progress(query, seen, load, time.monotonic() - begin, manifest))

    def _progress(
        self, query: StreamingQuery, seen: dict[int, Any], load: shop.Load, seconds: float, manifest: Manifest
    ) -> DemoProgress:
        seen |= {progress["batchId"]: progress for progress in query.recentProgress}
        done = [progress for progress in seen.values() if progress["numInputRows"]]
        slowest = min(manifest.consumers().values(), default=manifest.position)
        return DemoProgress(
            seconds=seconds,
            transactions=sum(load.done.values()),
            changes=sum(progress["numInputRows"] for progress in done),
            batches=len(done),
            batch_ms=done[-1]["batchDuration"] if done else 0,
            behind_bytes=max(manifest.position - slowest, 0),
        )

    def _prove(self, spark: SparkSession, source: SourceConfig) -> list[Verdict]:
        rebuilt = Rebuild()
        rebuilt.apply(self._written(spark))
        self._problems = rebuilt.problems
        with connect(source.conninfo()) as connection:
            there = checksums(connection, shop.TABLES)
        return [Verdict(table, there[table], rebuilt.checksum(table)) for table in shop.TABLES]

    @property
    def problems(self) -> list[str]:
        """Return what did not fit while the tables were rebuilt, such as a changed row that was not there."""
        return self._problems

    def _written(self, spark: SparkSession) -> Iterator[Change]:
        """Yield what the query wrote, as changes, in order."""
        with closing(self._manifest()) as manifest:
            schemas = manifest.schemas()
        rows = spark.read.parquet(str(self.folder / "changes")).orderBy("commit_lsn", "seq").toArrow()
        return changes_of(rows, schemas)

    def _manifest(self) -> Manifest:
        return Manifest.open(self.folder / "spool" / "demo" / "shop")


def changes_of(rows: pa.Table, schemas: Mapping[tuple[TableId, int], TableSchema]) -> Iterator[Change]:
    """Yield rows of `postgres_cdc` (all tables, as maps) as the changes they were made from."""
    for row in rows.to_pylist(maps_as_pydicts="strict"):
        table = schemas.get((TableId(row["table_id"]), row["schema_version"]))
        names = table.column_names if table else ()
        before, after = row["before"], row["after"]
        op = Op[row["op"].upper()]
        yield Change(
            table=table,
            op=op,
            commit_lsn=Lsn(row["commit_lsn"]),
            lsn=Lsn(row["lsn"]),
            seq=row["seq"],
            xid=row["xid"],
            committed_at=row["committed_at"],
            before_kind=BeforeKind[row["before_kind"].upper()],
            before=None if before is None else tuple(before.get(name) for name in names),
            after=None if after is None else _after(op, after, names),
            unchanged=tuple(names.index(name) for name in row["unchanged"] or ()),
        )


def _after(op: Op, after: Mapping[str, str], names: tuple[str, ...]) -> tuple[str | None, ...]:
    match op:
        case Op.MESSAGE:
            kind = "transactional" if after["transactional"] == "true" else "immediate"
            return after["prefix"], kind, after["content"]
        case Op.TRUNCATE:
            return tuple(option for option in after["options"].split(", ") if option)
    return tuple(after.get(name) for name in names)


@contextmanager
def _stopped_after(spark: SparkSession, query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query quietly: Spark complains at length of a batch that was interrupted on purpose."""
    try:
        yield query
    finally:
        spark.sparkContext.setLogLevel("OFF")
        query.stop()

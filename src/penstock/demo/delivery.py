"""The demo of a whole pipeline: a shop under load, delivered to a destination, compared at the end.

The shop has its rows before the pipeline starts, and goes on trading while they are copied.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

from penstock.capture.heartbeat import mark
from penstock.config import Config, load
from penstock.demo import shop
from penstock.demo.ends import End
from penstock.demo.proof import checksums
from penstock.demo.run import DemoProgress, Held, Proven, Verdict, write_private
from penstock.embedded.postgres import PostgresServer
from penstock.logs import LogFormat
from penstock.model import Lsn
from penstock.monitoring.launch import Monitoring, monitored
from penstock.pipeline import rates
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.status import Document, StatusReader
from penstock.postgres.connection import connect

LOOK_EVERY, SHOW_EVERY = 0.25, 1.0
"""Seconds."""

_CONFIG = """\
# The demo's pipeline. While it runs: penstock status {file}
pipeline: demo
sources:
  - name: shop
    dsn: {source}
    tables: {{include: ["public.*"]}}
destinations:
  - name: warehouse
    {destination}
batch_control: {{interval: 200ms}}
monitoring: {{port: 0}}
spool: {{path: {folder}/spool}}
state: {{url: "sqlite:///{folder}/state.db"}}
"""


class DeliveryDemo:
    problems: tuple[str, ...] = ()
    monitoring: Monitoring | None = None

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        end: Callable[[Path], End],
        held: Held = nullcontext,
    ) -> None:
        self.folder = folder.absolute()
        self.file = self.folder / "shop.yaml"
        self._tell = tell
        self._held = held
        self._source = PostgresServer(self.folder / "postgres")
        self._end = end(self.folder)
        self._stop = threading.Event()
        self._error: BaseException | None = None

    def run(self, seconds: float, rows: int, show: Callable[[DemoProgress], None], proven: Proven) -> None:
        self._tell("Starting PostgreSQL")
        try:
            with self._held():
                self._source.start()
            with self._held():
                destination = self._end.start()
            config = self._configure(destination)
            with connect(config.sources[0].conninfo()) as connection:
                shop.create(connection)
                shop.seed(connection, rows)
            self._tell(f"Starting the pipeline, to {self._end.what}")
            thread = threading.Thread(target=self._deliver, args=(config,))
            try:
                with self._held():
                    thread.start()
                self._trade(config, seconds, show)
                self._tell("Comparing source and destination")
                proven(self._compare(config))
            finally:
                self._stop.set()
                if thread.ident is not None:
                    thread.join()
        finally:
            self._source.stop()
            self._end.stop()

    @property
    def dashboard(self) -> str | None:
        return self.monitoring.url if self.monitoring else None

    @property
    def files(self) -> Path | None:
        return self._end.files

    def _configure(self, destination: str) -> Config:
        text = _CONFIG.format(
            file=self.file, folder=self.folder, source=self._source.url(), destination=destination
        )
        write_private(self.file, text)
        return load(self.file)

    def _deliver(self, config: Config) -> None:
        try:
            pipeline = Pipeline(config, self._stop)
            with monitored(pipeline, logging.WARNING, LogFormat.TEXT) as self.monitoring:
                pipeline.run()
        except BaseException as error:
            self._error = error

    def _trade(self, config: Config, seconds: float, show: Callable[[DemoProgress], None]) -> None:
        load = shop.Load(config.sources[0].conninfo(), rate=200)
        load.start()
        begin, end = time.monotonic(), None
        with closing(StatusReader(config)) as reader:
            status = shown = reader.read()
            shown_at = time.monotonic()
            while end is None or not self._delivered(status, end):
                if self._error is not None:
                    load.stop()
                    raise self._error
                time.sleep(LOOK_EVERY)
                status, now = reader.read(), time.monotonic()
                if now - shown_at >= SHOW_EVERY:
                    rates.add(status, shown, now - shown_at)
                    shown, shown_at = status, now
                    show(_progress(status, load, now - begin))
                ready = [table["phase"] == "ready" for table in status["destinations"][0]["tables"]]
                if end is None and now - begin >= seconds and ready and all(ready) and self._end.follows():
                    load.stop()
                    with connect(config.sources[0].conninfo()) as connection:
                        end = mark(connection)
            show(_progress(status, load, time.monotonic() - begin))

    def _delivered(self, status: Document, end: Lsn) -> bool:
        position = status["destinations"][0]["streams"][0]["position"]
        return position is not None and Lsn.parse(position) > end

    def _compare(self, config: Config) -> list[Verdict]:
        source = config.sources[0].conninfo()
        with connect(source) as connection:
            there = checksums(connection, shop.TABLES)
        here = self._end.checksums(source)
        return [Verdict(table, there[table], here[table]) for table in shop.TABLES]


def _progress(status: Document, load: shop.Load, seconds: float) -> DemoProgress:
    stream = status["destinations"][0]["streams"][0]
    return DemoProgress(
        seconds=seconds,
        transactions=sum(load.done.values()),
        changes=stream["rows"],
        batches=stream["batches"],
        batch_ms=0,
        behind_bytes=stream["lag_bytes"] or 0,
        status=status,
    )

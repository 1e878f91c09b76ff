"""The stream that drives a destination: its rows are ranges of positions, one for each batch.

What a destination writes it reads from the spool itself, in its own tasks: the rows of tables need not pass
through the JVM where nothing there needs them. So this stream carries no rows of tables, only where a batch
begins and ends. The reader decides when a batch begins and how large it is: when `interval` has passed since
the one before began, or sooner if so many rows wait that waiting for more would save little; a `patient` one
only if they fill a batch. (A trigger of Spark's own waits for the next tick of a clock: a batch that took a
little more than an interval would be followed by nothing for the rest of the next one.)

How far the destination came is not taken from Spark's checkpoint, which is not durable enough for that, but
from the destination: the stream begins at the position it is told and needs no checkpoint of an earlier run.
Nor does it acknowledge: the pipeline does, when a batch is durable.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from penstock.model import Lsn
from penstock.spool.manifest import Manifest

NAME = "penstock_ranges"
LONG_POLL = 0.5
"""Seconds that the reader waits for something new before it says that there is nothing."""
SHORTEST_POLL, POLLS = 0.005, 20
"""Seconds between two looks at the spool: a small part of the interval between batches."""
ENOUGH_ROWS = 10_000
"""A batch of more than these begins at once, unless the reader is told to be patient."""

Offset = dict[str, str]


def end_of(checkpoint: Path, batch: int) -> Lsn:
    """Return where a batch ends: Spark notes that before it begins. (To collect the batch's one row is a job,
    and a job takes longer than all else that Spark does for a batch.)"""
    text = (checkpoint / "offsets" / str(batch)).read_text()
    return Lsn.parse(json.loads(text.splitlines()[-1])["lsn"])


class Ranges(DataSource):
    """Options: `spool`, `start` (a position), `interval` (seconds), `maxRows`, `maxBytes`, `patient`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "start string, end string"

    def streamReader(self, schema: object) -> RangeReader:  # noqa: ARG002
        return RangeReader(self.options)


class Range(InputPartition):
    def __init__(self, start: str, end: str) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class RangeReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._spool = Path(options["spool"])
        self._start = options["start"]
        self._most_rows = int(options["maxRows"])
        self._most_bytes = int(options["maxBytes"])
        self._interval = float(options["interval"])
        self._patient = options.get("patient") == "true"
        self._poll = min(LONG_POLL, max(SHORTEST_POLL, self._interval / POLLS))
        self._next = 0.0
        """When the next batch may begin."""
        self._open: Manifest | None = None

    @property
    def _manifest(self) -> Manifest:
        if self._open is None:
            signal.signal(signal.SIGTERM, self._leave)
            self._open = Manifest.open(self._spool)
        return self._open

    def initialOffset(self) -> Offset:
        _ = self._manifest  # opening it also sets how this process exits
        return {"lsn": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002
        position = Lsn.parse(start["lsn"])
        until = time.monotonic() + LONG_POLL
        while (now := time.monotonic()) < until:
            reached = self._manifest.next_position(position, self._most_rows, self._most_bytes)
            if reached > position and (now >= self._next or self._is_worth_it(position, reached)):
                self._next = now + self._interval
                return {"lsn": str(reached)}
            time.sleep(self._poll)
        return start

    def _is_worth_it(self, position: Lsn, reached: Lsn) -> bool:
        if self._patient:
            return reached < self._manifest.next_position(position)
        return self._manifest.next_position(position, ENOUGH_ROWS) < reached

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [Range(start["lsn"], end["lsn"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield pa.RecordBatch.from_arrays([[partition.start], [partition.end]], ["start", "end"])

    def _leave(self, _number: int, _frame: FrameType | None) -> NoReturn:
        """Exit at once on Spark's SIGTERM: Spark's own way out writes to a closed socket."""
        os._exit(0)

"""The reader of a stream: offsets and plans beside the driver, rows on the executors.

A stream's offset is a position in the WAL, `{"lsn": "16/B374D848"}`: everything that committed before it has
been read. Batches end between transactions.

How far the spool may forget: `start` in `latestOffset` is what Spark has in its commit log, so everything
before is done with, and the reader says so under its consumer's name. While nothing comes, it moves that on
with capture, so an idle stream does not hold back the slot.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import FrameType
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.changes import unreadable
from penstock.changes.slices import Slice, read_slice, slices_of
from penstock.model import Lsn
from penstock.spark.cdc.chosen_table import ChosenTable
from penstock.spark.cdc.options import EARLIEST, LATEST, CdcOptions
from penstock.spark.cdc.partitions import SpoolPartition, partitions
from penstock.spark.cdc.query_spool import QuerySpool
from penstock.spark.cdc.shapes import OneTable, Shape
from penstock.spool.manifest import Manifest

LONG_POLL = 0.1
"""Seconds that the reader waits for something new before it says that there is nothing."""
POLL = 0.01
ROWS_AT_ONCE = 16_384
"""In one Arrow batch, where rows are put in order."""

Offset = dict[str, str]


class SpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: CdcOptions, shape: Shape, chosen: ChosenTable | None) -> None:
        self._options = options
        self._spool = QuerySpool(options)
        self._shape = shape
        self._chosen = chosen
        self._open: Manifest | None = None
        self._target: Lsn | None = None
        self._acknowledged: Lsn | None = None

    # Beside the driver

    @property
    def _manifest(self) -> Manifest:
        if self._open is None:
            signal.signal(signal.SIGTERM, self._leave)
            self._open = self._spool.open()
        return self._open

    def initialOffset(self) -> Offset:
        manifest, consumer = self._manifest, self._options.consumer
        wanted = self._options.starting_position
        while True:
            start = {EARLIEST: manifest.retired, LATEST: manifest.position}.get(wanted) or Lsn.parse(wanted)
            manifest.next_position(start)  # raises if it is gone, before anything is kept for the query
            held = manifest.consumers().get(consumer)
            if held is not None and held > start:
                manifest.forget(consumer)
            manifest.register(consumer, start)
            if manifest.retired <= start:
                return _offset(start)
            manifest.forget(consumer)  # removed while it was being registered

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._spool.catch_up(self._manifest)
        self._target = self._manifest.position

    def reportLatestOffset(self) -> Offset:
        return _offset(self._manifest.position)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        position = _position(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        until = time.monotonic() + (LONG_POLL if self._target is None else 0)
        self._acknowledge(position)
        while True:
            captured = self._manifest.position  # before looking: all that committed before it is visible
            reached = self._up_to_target(position, self._manifest.next_position(position, most))
            if reached > position:
                return _offset(reached)
            if self._target is None and self._spool.look_after():
                self._acknowledge(captured)
            if time.monotonic() >= until:
                return start
            time.sleep(POLL)

    def _up_to_target(self, start: Lsn, reached: Lsn) -> Lsn:
        """Return the position, under AvailableNow at most that of when the query began."""
        if self._target is None or reached <= self._target:
            return reached
        return max((entry.end for entry in self._manifest.entries(start, self._target)), default=start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begin, finish = _position(start), _position(end)
        entries = self._manifest.entries(begin, finish)
        schemas = self._manifest.schemas() if entries else {}
        parts = slices_of(self._spool.path, entries, begin, schemas)
        if self._chosen is not None:
            assert isinstance(self._shape, OneTable)
            parts = self._chosen.slices_of_it(parts, self._shape)
        return partitions(parts)

    def commit(self, end: Offset) -> None:
        self._acknowledge(_position(end))

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _leave(self, _number: int, _frame: FrameType | None) -> NoReturn:
        """Exit at once on Spark's SIGTERM: Spark's own way out writes to a closed socket."""
        self.stop()
        os._exit(0)

    def _acknowledge(self, position: Lsn) -> None:
        if self._acknowledged is None or position > self._acknowledged:
            self._manifest.advance(self._options.consumer, position)
            self._acknowledged = position

    # On the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        for _, segment in groupby(partition.slices, key=lambda part: part.path):
            parts = list(segment)
            batches = (self._shape.batch(rows, part.table) for part in parts for rows in _rows(part))
            one_table = len({part.table and part.table.id for part in parts}) == 1
            yield from batches if one_table else in_order(batches, "_" if self._chosen else "")


def _rows(part: Slice) -> Iterator[pa.RecordBatch]:
    for rows in read_slice(part):
        if part.table is not None:
            unreadable.refuse(rows, part.table)
        yield rows


def in_order(batches: Iterable[pa.RecordBatch], prefix: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one segment, which are grouped by table there, in the order of the stream."""
    held = list(batches)
    if held:
        order = [(f"{prefix}commit_lsn", "ascending"), (f"{prefix}seq", "ascending")]
        yield from pa.Table.from_batches(held).sort_by(order).to_batches(max_chunksize=ROWS_AT_ONCE)


def _offset(position: Lsn) -> Offset:
    return {"lsn": str(position)}


def _position(offset: Mapping[str, str]) -> Lsn:
    return Lsn.parse(offset["lsn"])

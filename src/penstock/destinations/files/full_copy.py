"""A full copy as one file, written by many tasks.

Each task has the server write its part of the table as CSV, compresses that and puts it beside where the file
will be. Behind each other, after one with the header, the parts are one valid file. Nothing but compressed
bytes goes through the driver, which puts them together and takes their SHA-256.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from penstock.changes.csv_text import csv_line, csv_text
from penstock.destinations.files.compression import Compression
from penstock.destinations.files.storage import Storage, Written
from penstock.model.errors import PenstockError
from penstock.postgres.snapshot import CopyRange, copy_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = ".parts"

Told: TypeAlias = tuple[int, int] | PenstockError


@dataclass(frozen=True, slots=True)
class Sheet:
    """The file that all tasks write a part of."""

    storage: Storage
    folder: str
    compression: Compression
    columns: tuple[str, ...]

    def part(self, number: int) -> str:
        return f"{self.folder}/{PARTS}/{number:06}"

    def write(self, number: int, lines: Generator[bytes | memoryview, None, int]) -> tuple[int, int]:
        """The part's number, and how many rows it has. A second attempt takes the place of the first.
        Runs on executors."""
        rows = 0

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal rows
            rows = yield from lines

        self.storage.put(self.part(number), self.compression.compressed(counted()))
        return number, rows

    def finish(self, name: str, numbers: Iterable[int]) -> Written:
        """One file of all parts, which are gone then."""
        header = self.compression.compressed([csv_line(self.columns)])
        return self.storage.concatenate(f"{self.folder}/{name}", header, map(self.part, sorted(numbers)))


@dataclass(frozen=True, slots=True)
class ExportPart:
    """What one task exports."""

    sheet: Sheet
    number: int
    conninfo: str
    snapshot: str
    range: CopyRange

    def __repr__(self) -> str:
        return f"ExportPart({self.sheet.folder}, {self.number})"


def export_part(part: ExportPart) -> Told:
    """Runs on executors."""
    try:
        return part.sheet.write(part.number, copy_out(part.conninfo, part.snapshot, part.range, "csv"))
    except PenstockError as error:
        return error


def export_rows(sheet: Sheet, rows: DataFrame) -> list[Told]:
    """Rows that Spark made, every column as text: each partition is a part. What its tasks tell."""
    rows = rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))
    told = rows.mapInArrow(partial(_export_partition, sheet), "told binary").collect()
    return [pickle.loads(one) for (one,) in told]


def _export_partition(sheet: Sheet, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on executors."""
    context = TaskContext.get()
    told: Told
    try:
        told = sheet.write(context.partitionId() if context is not None else 0, _lines(batches))
    except PenstockError as error:
        told = error
    yield pa.record_batch({"told": pa.array([pickle.dumps(told)], pa.binary())})


def _lines(batches: Iterator[pa.RecordBatch]) -> Generator[memoryview, None, int]:
    rows = 0
    for batch in batches:
        if len(batch):
            rows += len(batch)
            yield from csv_text([column.cast(pa.string()) for column in batch.columns])
    return rows

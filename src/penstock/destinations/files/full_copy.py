"""A full copy as one file, written by many tasks.

Each task has the server write its part of the table as CSV, compresses that and puts it beside where the file
will be. Behind each other, after one with the header, the parts are one valid file. Nothing but compressed
bytes goes through the driver, which puts them together and takes their SHA-256.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.changes.csv_text import csv_line, csv_text
from penstock.destinations.files.compression import Compression, Meter
from penstock.destinations.files.storage import Storage, Written
from penstock.destinations.work import Partition
from penstock.postgres.snapshot import CopyRange, copy_out

PARTS = ".parts"


class SheetPart(NamedTuple):
    """A part that is written."""

    number: int
    rows: int
    meter: Meter


@dataclass(frozen=True, slots=True)
class Sheet:
    """The file that all tasks write a part of."""

    storage: Storage
    folder: str
    compression: Compression
    columns: tuple[str, ...]

    def part(self, number: int) -> str:
        return f"{self.folder}/{PARTS}/{number:06}"

    def write(self, number: int, lines: Generator[bytes | memoryview, None, int]) -> SheetPart:
        """Write a part. A second attempt takes the place of the first. Runs on executors."""
        rows, meter = 0, Meter()

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal rows
            rows = yield from lines

        self.storage.put(self.part(number), self.compression.compressed(counted(), meter))
        return SheetPart(number, rows, meter)

    def finish(self, name: str, parts: Iterable[SheetPart]) -> tuple[Written, Meter]:
        """Write one file of all parts and return it, and what it was made of; remove the parts."""
        whole, numbers = Meter(), []
        for part in parts:
            numbers.append(part.number)
            whole.size += part.meter.size
            whole.seconds += part.meter.seconds
        header = self.compression.compressed([csv_line(self.columns)], whole)
        file = self.storage.concatenate(f"{self.folder}/{name}", header, map(self.part, sorted(numbers)))
        return file, whole


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


def export_part(part: ExportPart) -> SheetPart:
    """Runs on executors."""
    return part.sheet.write(part.number, copy_out(part.conninfo, part.snapshot, part.range, "csv"))


def export_partition(sheet: Sheet, partition: Partition) -> SheetPart:
    """Rows that Spark made: each partition is a part. Runs on executors."""
    number, batches = partition
    return sheet.write(number, _lines(batches))


def _lines(batches: Iterator[pa.RecordBatch]) -> Generator[memoryview, None, int]:
    rows = 0
    for batch in batches:
        if len(batch):
            rows += len(batch)
            yield from csv_text(batch.columns)
    return rows

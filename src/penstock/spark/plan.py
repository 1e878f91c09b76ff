"""Which rows of the spool a batch reads, and how they are shared out among tasks.

The unit is a row group of a segment. A small batch stays in one partition, since a task costs milliseconds; a
large one is cut into partitions of about `ROWS_PER_PARTITION`, in the order of the spool, so that the rows of
one table follow each other within a partition and from one to the next. A partition carries all that its
task needs: paths, row groups, schemas.

Where many tables changed a little, most of the time would go to a segment's metadata: that of 200 parts is
parsed in 1.3 ms, and a part read in 0.2. So it is kept for the next slice. Arrow's threads take a fifth more
CPU than one, and on few cores give nothing; columns that are not needed take another fifth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from penstock.model import NO_TABLE, Lsn, TableId, TableSchema
from penstock.model.errors import SpoolDamaged
from penstock.spool.manifest import Entry
from penstock.spool.segment import ROW_GROUP_ROWS, Part

ROWS_PER_PARTITION = 100_000

SEGMENTS_KEPT = 32
"""Of how many segments the metadata is kept."""

Schemas = Mapping[tuple[TableId, int], TableSchema]


@dataclass(frozen=True, slots=True)
class Slice:
    """Some row groups of one part: rows of one table under one version of its schema."""

    path: Path
    first_row_group: int
    row_groups: int
    rows: int
    table: TableSchema | None
    """None for logical messages."""
    after: Lsn | None
    """If the batch begins inside the segment: rows that committed before are not part of it."""
    columns: tuple[str, ...] | None = None
    """Which columns are read; None: all."""


class SpoolPartition(InputPartition):
    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def slices(spool: Path, entries: Iterable[Entry], start: Lsn, schemas: Schemas) -> Iterator[Slice]:
    """Every part of the segments of a batch, in order."""
    for entry in entries:
        for part in entry.segment.parts:
            yield Slice(
                path=spool / entry.segment.file,
                first_row_group=part.first_row_group,
                row_groups=part.row_groups,
                rows=part.rows,
                table=_schema_of(part, schemas, entry),
                after=start if entry.start < start else None,
            )


def _schema_of(part: Part, schemas: Schemas, entry: Entry) -> TableSchema | None:
    if part.table_id == NO_TABLE:
        return None
    found = schemas.get((part.table_id, part.schema_version))
    if found is None:
        raise SpoolDamaged(
            f"no schema of table {part.table_id}, version {part.schema_version}", file=entry.segment.file
        )
    return found


def partitions(parts: Iterable[Slice]) -> list[SpoolPartition]:
    parts = list(parts)
    total = sum(part.rows for part in parts)
    count = max(1, round(total / ROWS_PER_PARTITION))
    if not parts or count == 1:
        return [SpoolPartition(tuple(parts))] if parts else []
    shares: list[list[Slice]] = [[] for _ in range(count)]
    rows = 0
    for piece in (piece for part in parts for piece in _row_groups(part)):
        shares[min(rows * count // total, count - 1)].append(piece)
        rows += piece.rows
    return [SpoolPartition(tuple(share)) for share in shares if share]


def _row_groups(part: Slice) -> Iterator[Slice]:
    for group in range(part.row_groups):
        rows = min(ROW_GROUP_ROWS, part.rows - group * ROW_GROUP_ROWS)
        yield replace(part, first_row_group=part.first_row_group + group, row_groups=1, rows=rows)


def read(part: Slice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, a row group at a time. Runs on executors."""
    try:
        with pq.ParquetFile(part.path, metadata=_metadata_of(part.path)) as file:
            for group in range(part.first_row_group, part.first_row_group + part.row_groups):
                found = file.read_row_group(group, columns=part.columns, use_threads=False)
                for rows in found.to_batches():
                    if part.after is not None:
                        rows = _from(rows, part.after)
                    if rows.num_rows:
                        yield rows
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolDamaged(
            f"a segment does not read: {error}",
            file=part.path,
            remedy="Every executor must reach the spool's folder under this path",
        ) from error


def _from(rows: pa.RecordBatch, position: Lsn) -> pa.RecordBatch:
    """The rows, which are in the order of their commits, from a position on: nothing is copied."""
    return rows.slice(int(np.searchsorted(rows["commit_lsn"].to_numpy(), position.value)))


def _metadata_of(path: Path) -> pq.FileMetaData:
    """A segment never changes, but another spool may come to the same place and count from 1 again."""
    file = path.stat()
    return _metadata(path, file.st_ino, file.st_mtime_ns, file.st_size)


@lru_cache(SEGMENTS_KEPT)
def _metadata(path: Path, *_version: int) -> pq.FileMetaData:
    return pq.read_metadata(path)

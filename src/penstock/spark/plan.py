"""Which rows of the spool a batch reads, and how they are shared out among tasks.

The unit is a row group of a segment. A small batch stays in one partition, since a task costs milliseconds; a
large one is cut into partitions of about `ROWS_PER_PARTITION`, in the order of the spool, so that the rows of
one table follow each other within a partition and from one to the next. A partition carries all that its
task needs: paths, row groups, schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from penstock.model import NO_TABLE, Lsn, TableId, TableSchema
from penstock.model.errors import SpoolDamaged
from penstock.spool.manifest import Entry
from penstock.spool.segment import ROW_GROUP_ROWS, Part

ROWS_PER_PARTITION = 100_000

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
        with pq.ParquetFile(part.path) as file:
            for group in range(part.first_row_group, part.first_row_group + part.row_groups):
                for rows in file.read_row_group(group).to_batches():
                    if part.after is not None:
                        rows = rows.filter(pc.greater_equal(rows["commit_lsn"], part.after.value))
                    if rows.num_rows:
                        yield rows
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolDamaged(
            f"a segment does not read: {error}",
            file=part.path,
            remedy="Every executor must reach the spool's folder under this path",
        ) from error

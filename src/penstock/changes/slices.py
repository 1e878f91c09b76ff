"""Which rows of the spool a batch reads: slices of its segments, each of one table under one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.model import NO_TABLE, Lsn, TableId, TableSchema
from penstock.model.errors import SpoolDamaged
from penstock.spool.manifest import SegmentEntry
from penstock.spool.segment import SegmentPart, read_batches

Schemas = Mapping[tuple[TableId, int], TableSchema]


@dataclass(frozen=True, slots=True)
class Slice:
    """Some record batches of one part: rows of one table under one version of its schema."""

    path: Path
    first_batch: int
    batches: int
    rows: int
    table: TableSchema | None
    """None for logical messages."""
    after: Lsn | None
    """If the batch begins inside the segment: rows that committed before are not part of it."""
    columns: tuple[str, ...] | None = None
    """Which columns are read; None: all."""


def slices_of(spool: Path, entries: Iterable[SegmentEntry], start: Lsn, schemas: Schemas) -> Iterator[Slice]:
    """Yield every part of the segments of a batch, in order."""
    for entry in entries:
        for part in entry.segment.parts:
            yield Slice(
                path=spool / entry.segment.file,
                first_batch=part.first_batch,
                batches=part.batches,
                rows=part.rows,
                table=_schema_of(part, schemas, entry),
                after=start if entry.start < start else None,
            )


def _schema_of(part: SegmentPart, schemas: Schemas, entry: SegmentEntry) -> TableSchema | None:
    if part.table_id == NO_TABLE:
        return None
    schema = schemas.get((part.table_id, part.schema_version))
    if schema is None:
        raise SpoolDamaged(
            f"no schema of table {part.table_id}, version {part.schema_version}", file=entry.segment.file
        )
    return schema


def read_slice(part: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice, a record batch at a time. Runs on executors."""
    try:
        for rows in read_batches(part.path, part.first_batch, part.batches, part.columns):
            kept = rows if part.after is None else rows_from(rows, part.after)
            if kept.num_rows:
                yield kept
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolDamaged(
            f"a segment does not read: {error}",
            file=part.path,
            remedy="Every executor must reach the spool's folder under this path",
        ) from error


def rows_from(rows: pa.RecordBatch, position: Lsn) -> pa.RecordBatch:
    """Return the rows, which are in the order of their commits, from a position on, without copying."""
    return rows.slice(int(np.searchsorted(rows["commit_lsn"].to_numpy(), position.value)))

"""A segment: an immutable Parquet file of changes, cut at transaction boundaries.

One schema serves every table. Values are the text that PostgreSQL sent, so nothing can be altered here.
Rows of one table under one schema version are contiguous and start their own row groups (a *part*), in
order, so that a reader of one table reads only its own bytes.

    table_id        the table's oid; 0 for a logical message
    schema_version  which `TableSchema` the values belong to
    op              I, U, D, T (truncate), M (logical message), as its ASCII code
    commit_lsn      where the transaction committed; with `seq` the order and identity of a change
    lsn             where the change itself stands in the WAL
    seq             the place in the transaction, from 0
    xid             the (top-level) transaction
    committed_at    when it committed
    before_kind     0 no old row, 1 its key only, 2 all of it
    before, after   the values in the order of the columns; NULL is null
    unchanged       the places in `after` whose value PostgreSQL did not send (TOAST)

A truncate's `after` holds its options (`cascade`, `restart identity`); a message's holds its prefix,
`transactional` or `immediate`, and its content as bytea's hex text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model import TableId

SCHEMA = pa.schema(
    [
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("op", pa.int8(), nullable=False),
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("before_kind", pa.int8(), nullable=False),
        pa.field("before", pa.list_(pa.string())),
        pa.field("after", pa.list_(pa.string())),
        pa.field("unchanged", pa.list_(pa.int32())),
    ]
)
EMPTY = pa.record_batch([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


class Op(IntEnum):
    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    TRUNCATE = ord("T")
    MESSAGE = ord("M")


class BeforeKind(IntEnum):
    NONE = 0
    KEY = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one table under one schema version in a segment."""

    table_id: TableId
    schema_version: int
    first_row_group: int
    row_groups: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    file: str
    """Its name inside the spool."""
    rows: int
    bytes: int
    parts: tuple[Part, ...]


ROW_GROUP_ROWS = 65_536


def write(path: Path, batches: Sequence[pa.RecordBatch]) -> Segment:
    """Write the batches as one segment, durable when this returns: written, fsynced, renamed.

    A crash before the rename leaves a `.tmp` file that the next start removes; a crash after it leaves a
    file that no manifest names, which the next start removes as well.
    """
    table = pa.Table.from_batches(batches, SCHEMA)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as sink:
            parts = _write_parts(sink, table)
            sink.flush()
            os.fsync(sink.fileno())
            size = sink.tell()
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Segment(path.name, table.num_rows, size, tuple(parts))


def _write_parts(sink: IO[bytes], table: pa.Table) -> list[Part]:
    parts: list[Part] = []
    row_groups = 0
    with pq.ParquetWriter(
        sink, SCHEMA, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=False
    ) as writer:
        for (table_id, version), rows in _by_part(table):
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
            groups = -(-rows.num_rows // ROW_GROUP_ROWS)
            parts.append(Part(TableId(table_id), version, row_groups, groups, rows.num_rows))
            row_groups += groups
    return parts


def read(path: Path, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in range(part.first_row_group, part.first_row_group + part.row_groups):
            yield from file.read_row_group(group).to_batches()


def _by_part(table: pa.Table) -> Iterator[tuple[tuple[int, int], pa.Table]]:
    """The rows of each table and version in order, without moving any where there is but one."""
    if table.num_rows == 0:
        return
    ids = table["table_id"].to_numpy()
    versions = table["schema_version"].to_numpy()
    keys = ids.astype(np.int64) << 32 | versions.astype(np.int64)
    if (keys == keys[0]).all():
        yield (int(ids[0]), int(versions[0])), table
        return
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    for places in np.split(order, bounds):
        first = places[0]
        yield (int(ids[first]), int(versions[first])), table.take(pa.array(places))

"""A segment: an immutable Arrow file of changes, cut at transaction boundaries.

One schema serves every table. Values are the text that PostgreSQL sent, so nothing can be altered here.
Rows of one table under one schema version are contiguous and start their own record batches (a *part*), in
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
from pyarrow import ipc

from penstock.model import TableId, private

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
class SegmentPart:
    """The rows of one table under one schema version in a segment."""

    table_id: TableId
    schema_version: int
    first_batch: int
    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    file: str
    """Its name inside the spool."""
    rows: int
    bytes: int
    parts: tuple[SegmentPart, ...]


BATCH_ROWS = 65_536


def write(path: Path, batches: Sequence[pa.RecordBatch]) -> Segment:
    """Write the batches as one segment, durable when this returns: written, fsynced, renamed.

    A crash before the rename leaves a `.tmp` file that the next start removes; a crash after it leaves a
    file that no manifest names, which the next start removes as well.
    """
    table = pa.Table.from_batches(batches, SCHEMA)
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "wb", opener=private.opener) as sink:
            parts = _write_parts(sink, table)
            sink.flush()
            os.fsync(sink.fileno())
            size = sink.tell()
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Segment(path.name, table.num_rows, size, tuple(parts))


def _write_parts(sink: IO[bytes], table: pa.Table) -> list[SegmentPart]:
    parts: list[SegmentPart] = []
    written = 0
    with ipc.new_file(sink, SCHEMA, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        for (table_id, version), rows in _by_part(table):
            batches = rows.combine_chunks().to_batches(BATCH_ROWS)
            for batch in batches:
                writer.write_batch(batch)
            parts.append(SegmentPart(TableId(table_id), version, written, len(batches), rows.num_rows))
            written += len(batches)
    return parts


def read(path: Path, part: SegmentPart, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, a record batch at a time; all columns, or these."""
    yield from read_batches(path, part.first_batch, part.batches, columns)


def read_batches(
    path: Path, first: int, count: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield some record batches of a segment, or all from one on."""
    fields = None if columns is None else [SCHEMA.get_field_index(name) for name in columns]
    with pa.memory_map(str(path)) as file:
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False))
        for number in range(first, reader.num_record_batches if count is None else first + count):
            yield reader.get_batch(number)


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

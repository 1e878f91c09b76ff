"""How the rows of a batch are shared out among tasks.

The unit is a record batch of a segment. A small batch stays in one partition, since a task costs
milliseconds; a large one is cut into partitions of about `ROWS_PER_PARTITION`, in the order of the spool, so
that the rows of one table follow each other within a partition and from one to the next. A partition carries
all that its task needs: paths, record batches, schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from penstock.changes.slices import Slice
from penstock.spool.segment import BATCH_ROWS

ROWS_PER_PARTITION = 100_000


class SpoolPartition(InputPartition):
    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def partitions(parts: Iterable[Slice]) -> list[SpoolPartition]:
    parts = list(parts)
    total = sum(part.rows for part in parts)
    count = max(1, round(total / ROWS_PER_PARTITION))
    if not parts or count == 1:
        return [SpoolPartition(tuple(parts))] if parts else []
    shares: list[list[Slice]] = [[] for _ in range(count)]
    rows = 0
    for piece in (piece for part in parts for piece in _batches(part)):
        shares[min(rows * count // total, count - 1)].append(piece)
        rows += piece.rows
    return [SpoolPartition(tuple(share)) for share in shares if share]


def _batches(part: Slice) -> Iterator[Slice]:
    for group in range(part.batches):
        rows = min(BATCH_ROWS, part.rows - group * BATCH_ROWS)
        yield replace(part, first_batch=part.first_batch + group, batches=1, rows=rows)

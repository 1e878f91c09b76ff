"""Changes of one table, cut to what memory can hold.

What happens inside a transaction is no version of a row, so for a table of the kind `history` transactions
stay whole; only one that is too large for that comes in pieces, which are told as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Chunk:
    rows: list[pa.RecordBatch]
    is_piece: bool = False
    """Of one transaction, which others of its pieces come before or after."""
    is_last: bool = False
    """The transaction ends with this piece, which may have no rows."""


@dataclass(slots=True)
class _Gathered:
    rows: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(self, *batches: pa.RecordBatch) -> None:
        for batch in batches:
            if batch.num_rows:
                self.rows.append(batch)
                self.count += batch.num_rows
                self.size += batch.nbytes

    def reached(self, rows: int, size: int) -> bool:
        return self.count >= rows or self.size >= size

    def take(self) -> list[pa.RecordBatch]:
        taken, self.rows, self.count, self.size = self.rows, [], 0, 0
        return taken


def whole_transactions(rows: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[Chunk]:
    """Yield as many transactions together as these limits allow. Whether a batch's last goes on is seen in
    the batch that follows."""
    ended, last = _Gathered(), _Gathered()
    commit, in_pieces = -1, False
    for batch in _no_longer_than(rows, most_rows):
        commits = batch["commit_lsn"].to_numpy()
        more = int(np.searchsorted(commits, commit, "right"))
        last.add(batch.slice(0, more))
        if more < batch.num_rows:
            if in_pieces:
                yield Chunk(last.take(), is_piece=True, is_last=True)
            ended.add(*last.take())
            commit, in_pieces = int(commits[-1]), False
            begin = int(np.searchsorted(commits, commit))
            ended.add(batch.slice(more, begin - more))
            last.add(batch.slice(begin))
        goes_on_alone = last.reached(most_rows, most_bytes)
        if ended.rows and (goes_on_alone or ended.reached(most_rows, most_bytes)):
            yield Chunk(ended.take())
        if goes_on_alone:
            in_pieces = True
            yield Chunk(last.take(), is_piece=True)
    if in_pieces:
        yield Chunk(last.take(), is_piece=True, is_last=True)
    elif ended.rows or last.rows:
        yield Chunk(ended.take() + last.take())


def _no_longer_than(rows: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for begin in range(0, batch.num_rows, most_rows):
            yield batch.slice(begin, most_rows)

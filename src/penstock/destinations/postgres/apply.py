"""The changes of one table, applied to it: run by run, a bounded number of rows at a time.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.destinations.batch import rows_of
from penstock.destinations.postgres import clone, history, whole
from penstock.destinations.postgres.ahead import ahead
from penstock.destinations.postgres.append import additions, without_deletes
from penstock.destinations.postgres.follow import follow, rekey
from penstock.destinations.postgres.place import Place
from penstock.destinations.protocol import TableChanges
from penstock.postgres.connection import Connection
from penstock.spark.net import Net, net_changes
from penstock.spark.tally import Tally, net_rows
from penstock.spark.versions import Truncated, Versions, versions

Step = Net | Tally | Versions | Truncated

CHUNK_ROWS = 250_000
CHUNK_BYTES = 64 << 20


def apply_changes(connection: Connection, place: Place, changes: TableChanges, version: int) -> int:
    """How many rows were written or deleted. `version` is that of the schema which was followed last."""
    written = 0
    for run in changes.runs:
        at = place.at(run.delivery)
        if run.follow:
            follow(connection, at, run.follow)
        if run.delivery.table.version != version:
            version = run.delivery.table.version
            rekey(connection, at)
        steps = _steps(at, chunks(rows_of(changes, run), whole_transactions=place.history))
        large = sum(part.rows for part in run.slices) >= CHUNK_ROWS
        written += sum(_apply(connection, at, step) for step in (ahead(steps) if large else steps))
    return written


def _steps(place: Place, chunked: Iterable[list[pa.RecordBatch]]) -> Iterator[Step]:
    """What to write, in order; nothing is written yet."""
    table, key = place.delivery.table, place.key
    for chunk in chunked:
        if place.history:
            yield from versions(chunk, table, key)
        elif not key:
            yield net_rows([without_deletes(batch) for batch in chunk] if place.append else chunk, table)
        elif place.append:
            yield from (net_changes(piece, table, key) for piece in additions(chunk))
        else:
            yield net_changes(chunk, table, key)


def _apply(connection: Connection, place: Place, step: Step) -> int:
    if isinstance(step, Net):
        return clone.apply(connection, place, step)
    if isinstance(step, Tally):
        return whole.apply(connection, place, step)
    return history.apply(connection, place, step)


def chunks(rows: Iterable[pa.RecordBatch], *, whole_transactions: bool) -> Iterator[list[pa.RecordBatch]]:
    """Rows together that memory can hold several times over. What happens inside a transaction is no version
    of a row: there one is not cut, however large."""
    gathered: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
            split = _begun_before(gathered[-1], batch) if whole_transactions else 0
            if split < batch.num_rows:
                yield [*gathered, batch.slice(0, split)] if split else gathered
                gathered, count, size = [], 0, 0
                batch = batch.slice(split)
        gathered.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
    if gathered:
        yield gathered


def _begun_before(last: pa.RecordBatch, following: pa.RecordBatch) -> int:
    """How many of the following rows belong to the transaction of the last one."""
    commit = last["commit_lsn"][-1].as_py()
    return int(np.searchsorted(following["commit_lsn"].to_numpy(), commit, "right"))

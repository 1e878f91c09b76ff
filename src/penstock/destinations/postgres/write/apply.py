"""The changes of one table, applied to it: run by run, a bounded number of rows at a time.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from penstock.changes.net import Net, net_changes
from penstock.changes.row_counts import Tally, net_rows
from penstock.changes.versions import Truncated, Versions, versions
from penstock.destinations.batch import rows_of
from penstock.destinations.postgres.table.definition import with_traits
from penstock.destinations.postgres.table.follow_schema import follow, rekey
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.table.trust import guard, unchanged
from penstock.destinations.postgres.write import clone, history, inserts_only, keyless, large_transaction
from penstock.destinations.postgres.write.append import additions, without_deletes
from penstock.destinations.postgres.write.chunk import Chunk, whole_transactions
from penstock.destinations.postgres.write.inserts_only import Fresh
from penstock.destinations.postgres.write.large_transaction import LargeTransaction, Piece
from penstock.destinations.postgres.write.referenced import LateDeletes
from penstock.destinations.prefetch import ahead
from penstock.destinations.protocol import Run, TableChanges
from penstock.destinations.schema_change import SchemaChange
from penstock.model import TableSchema
from penstock.postgres.connection import Connection

Step = Fresh | Net | Tally | Versions | Truncated | Piece

CHUNK_ROWS = 250_000
CHUNK_BYTES = 64 << 20
FRESH_ROWS = 20_000

NEEDED: tuple[str, ...] = ("op", "commit_lsn", "before_kind", "before", "after", "unchanged")


@dataclass(frozen=True, slots=True)
class FollowedSchema:
    """What the table at the destination was made or changed for last."""

    version: int
    table: TableSchema | None = None
    """Full schema; known only right after a copy."""


def apply_changes(
    connection: Connection,
    target: TargetTable,
    changes: TableChanges,
    before: FollowedSchema,
    late: LateDeletes,
) -> int:
    """Apply the changes; return how many rows were written or deleted. `late` has those that are still to be
    deleted: none if the schema changed, since the table is another one then."""
    written = 0
    for number, run in enumerate(changes.runs):
        at = target.at(run.delivery)
        rows = chunks(rows_of(changes, _narrowed(run, changes, at)), at)
        first = next(rows, None)
        if first is None and run.slices and before.table is not None:
            continue  # the copy has all of it, and may have another schema already
        if _is_new(changes.runs[number:], before):
            late.flush()
            if run.follow:
                # A table is not altered as long as constraints of its rows are to be looked at.
                connection.execute("set constraints all immediate; set constraints all deferred")
                follow(connection, at, _left_to_do(run.follow, before.table, run.delivery.table))
            rekey(connection, at)
            before = FollowedSchema(run.delivery.table.version, before.table and run.delivery.table)
        guarded = guard(connection, at)
        at = replace(at, referenced=guarded.referenced, cascades=guarded.cascades)
        at = with_traits(connection, at)
        steps = _steps(at, chain([first] if first is not None else [], rows))
        many = sum(part.rows for part in run.slices) >= CHUNK_ROWS
        for step in ahead(steps) if many else steps:
            late.flush()
            written += _apply(connection, at, step, late)
        unchanged(connection, guarded, at)
    if any(run.follow for run in changes.runs):
        late.flush()
    return written


def _narrowed(run: Run, changes: TableChanges, target: TargetTable) -> Run:
    """Narrow the slices to the columns that are needed here, and to where the changes are meant from."""
    columns = NEEDED
    if changes.copied is not None:
        columns = (*columns, "xid")
    if target.history:
        columns = (*columns, "committed_at")
    slices = (
        replace(part, columns=columns, after=max(part.after or changes.start, changes.start))
        for part in run.slices
    )
    return replace(run, slices=tuple(slices))


def _is_new(runs: Sequence[Run], before: FollowedSchema) -> bool:
    """Whether the first of these runs is under a schema that was not followed yet. If this or a later one is
    under that which was followed last, so were those before it: they come again."""
    return all(run.delivery.table.version != before.version for run in runs)


def _left_to_do(change: SchemaChange, copied: TableSchema | None, to: TableSchema) -> SchemaChange:
    """Return the step without what is done: a copy may have the new columns already, not the new name."""
    if copied is None or copied.layout != to.layout:
        return change
    return SchemaChange(target=change.target)


def _steps(target: TargetTable, chunked: Iterable[Chunk]) -> Iterator[Step]:
    """Yield what to write, in order; nothing is written yet."""
    transaction = LargeTransaction()
    for chunk in chunked:
        if inserts_only.are_fresh(target, chunk.rows):
            yield Fresh(chunk.rows)
        elif chunk.is_piece:
            for step in versions(chunk.rows, target.delivery.table, target.key):
                yield Piece(transaction, step)
            if chunk.is_last:
                yield Piece(transaction, None)
        else:
            yield from _general(target, chunk.rows)


def _general(target: TargetTable, chunk: Sequence[pa.RecordBatch]) -> Iterator[Step]:
    table, key = target.delivery.table, target.key
    if target.history:
        yield from versions(chunk, table, key)
    elif not key:
        yield net_rows([without_deletes(batch) for batch in chunk] if target.append else chunk, table)
    elif target.append:
        yield from (net_changes(piece, table, key) for piece in additions(chunk))
    else:
        yield net_changes(chunk, table, key, again=target.referenced)


def _apply(connection: Connection, target: TargetTable, step: Step, late: LateDeletes) -> int:
    if isinstance(step, Fresh):
        if inserts_only.copied(connection, target, step):
            return step.rows
        return sum(_apply(connection, target, each, late) for each in _general(target, step.changes))
    if isinstance(step, Net):
        return clone.apply(connection, target, step, late)
    if isinstance(step, Tally):
        return keyless.apply(connection, target, step)
    if isinstance(step, Piece):
        return large_transaction.apply(connection, target, step)
    return history.apply(connection, target, step)


def chunks(rows: Iterable[pa.RecordBatch], target: TargetTable) -> Iterator[Chunk]:
    """Return the rows in chunks that memory can hold several times over."""
    if target.history:
        return whole_transactions(rows, CHUNK_ROWS, CHUNK_BYTES)
    return _chunks(rows, target)


def _chunks(rows: Iterable[pa.RecordBatch], target: TargetTable) -> Iterator[Chunk]:
    """If they are nothing but new, no more than it takes to keep PostgreSQL busy while the next are read."""
    gathered: list[pa.RecordBatch] = []
    count = size = 0
    new = True
    for batch in rows:
        if count >= (FRESH_ROWS if new else CHUNK_ROWS) or size >= CHUNK_BYTES:
            yield Chunk(gathered)
            gathered, count, size, new = [], 0, 0, True
        gathered.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        new = new and inserts_only.are_fresh(target, [batch])
    if gathered:
        yield Chunk(gathered)

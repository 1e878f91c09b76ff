"""Nothing but new rows: copied straight into the table, as they lie in the segments.

Keys need not be looked at, as a source does not insert one twice. Nor is any column picked out of the rows: a
list of values becomes a line of COPY's text, which costs a quarter of what the net change per key does. Where
the table does not take them (a key is there already, a row is refused) the general way finds out more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.changes.copy_text import rows_text
from penstock.destinations.postgres.session import is_to_be_found
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.write.staging import copy_lines
from penstock.postgres.connection import Connection
from penstock.spool.segment import Op


@dataclass(frozen=True, slots=True)
class Fresh:
    """Changes that are inserts of whole rows."""

    changes: Sequence[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.changes)


def are_fresh(target: TargetTable, changes: Sequence[pa.RecordBatch]) -> bool:
    """Whether these changes qualify for this fast path. Not for a history, whose rows have times; not for
    `append`, where the key of a deleted row is still there; not where rows have one more column, because
    several sources meet or the user's table computes it."""
    if (
        target.history
        or (target.append and target.key)
        or target.source_column is not None
        or target.computed
    ):
        return False
    return all(_only_inserts(batch) for batch in changes)


def _only_inserts(batch: pa.RecordBatch) -> bool:
    inserts = bool((np.asarray(batch["op"]) == Op.INSERT).all())
    return inserts and not len(batch["unchanged"].flatten())


def copied(connection: Connection, target: TargetTable, fresh: Fresh) -> bool:
    """Copy the rows in; return whether the table took them."""
    try:
        with connection.transaction():
            columns = [sql.Identifier(name) for name in target.columns]
            copy_lines(connection, target.identifier, columns, _lines(target, fresh))
        return True
    except psycopg.Error as error:
        if not is_to_be_found(error, target):
            raise
        return False


def _lines(target: TargetTable, fresh: Fresh) -> Iterator[memoryview]:
    for batch in fresh.changes:
        yield from rows_text(batch, len(target.columns))

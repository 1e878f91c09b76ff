"""Updates and deletes that do not tell which row they mean: those of a table without a replica identity.

Where it is not partitioned the server refuses them. Of a partition it takes the old row by the partition's
identity, and sends it by that of the whole table: where only partitions have keys, which is what pg_partman
makes, some of the old row comes, or nothing. Inserts are right, so such a table is followed while it has
nothing else.

Runs on executors.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Lsn, ReplicaIdentity, TableSchema
from penstock.model.errors import OldRowUnsent
from penstock.spool.segment import Op


def are_told(table: TableSchema) -> bool:
    """Whether the table's updates and deletes tell which row they mean."""
    return table.identity is ReplicaIdentity.FULL or any(column.key for column in table.columns)


def refuse(rows: pa.RecordBatch, table: TableSchema) -> None:
    """Raise if one of these changes, as the spool has them, does not tell which row it means."""
    if are_told(table):
        return
    places = pc.indices_nonzero(_is_one_of(rows, Op.UPDATE, Op.DELETE))
    if len(places):
        raise OldRowUnsent(
            "an update or delete does not tell which row it means: the table has no replica identity, its "
            "partitions have one",
            table=table.name,
            lsn=Lsn(rows["commit_lsn"][places[0].as_py()].as_py()),
        )


def without_untold_deletes(rows: pa.RecordBatch, table: TableSchema) -> pa.RecordBatch:
    """Return the changes for whoever deletes nothing: what is not told of a delete is not missed."""
    return rows if are_told(table) else rows.filter(pc.invert(_is_one_of(rows, Op.DELETE)))


def _is_one_of(rows: pa.RecordBatch, *ops: Op) -> pa.BooleanArray:
    return pc.is_in(rows["op"], pa.array(ops, pa.int8()))

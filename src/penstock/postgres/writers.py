"""Transactions that have written to tables and have not ended.

Rows that one wrote before its table was published are not in the stream. Once it has ended a new snapshot has
them. Nobody waits for who asks: no lock is taken, but of the list of locks, and that once for all tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.model import TableId
from penstock.postgres.connection import Connection


class WritingTransaction(NamedTuple):
    """Known by its virtual transaction for as long as the server runs."""

    virtual: str
    pid: int | None
    """None: it is prepared, or its session has gone."""
    prepared: str | None = None

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid is not None else f"prepared transaction {self.prepared!r}"


def writers(connection: Connection, tables: Iterable[TableId]) -> dict[TableId, set[WritingTransaction]]:
    """Return who has written to each of the tables, or to its partitions, so far."""
    found: dict[TableId, set[WritingTransaction]] = {table: set() for table in tables}
    for table, *writer in connection.execute(_WRITERS, (list(found),)):
        found[table].add(WritingTransaction(*writer))
    return found


def still(before: Iterable[WritingTransaction], now: Iterable[WritingTransaction]) -> set[WritingTransaction]:
    """Return those of `before` that have not ended; one may have left its process, being prepared."""
    names = {writer.virtual for writer in before}
    return {writer for writer in now if writer.virtual in names}


# Every write takes a lock of the first kind; the others stand for TRUNCATE, ALTER and their like. A vacuum
# (ShareUpdateExclusiveLock) writes no rows.
_WRITERS = """
with locks as materialized (
    select locktype, database, relation, transactionid, virtualtransaction, pid, mode
    from pg_locks where granted and locktype in ('relation', 'transactionid')
)
select distinct tree.relid::int8, l.virtualtransaction, l.pid, p.gid
from locks l
cross join lateral (
    select l.relation::oid union select relid::oid from pg_partition_ancestors(l.relation)
) tree (relid)
left join locks x on l.pid is null and x.pid is null and x.locktype = 'transactionid'
                 and x.virtualtransaction = l.virtualtransaction
left join pg_prepared_xacts p on p.transaction = x.transactionid
where l.locktype = 'relation' and tree.relid = any (%s::oid[])
  and l.database = (select oid from pg_database where datname = current_database())
  and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""

"""One table at one moment: the snapshot a copy is made under, and the parts it is read in.

`Snapshot` holds a transaction open on the source, under whose exported name any number of other sessions
(`copy_out`, on Spark's executors) see the very same rows. What it contains is decided by transaction
(`visibility`), and everything it contains is in the stream before `lsn`. A part is a range of the table's
blocks, which PostgreSQL reads by itself without looking at the others (14 and later).

MVCC does not protect from everything: a TRUNCATE, or an ALTER that rewrites the table, makes the table look
empty or different to snapshots taken before it. So the order is

    1. lock the table (access share: it keeps out only such statements), and all of its partitions;
    2. take the snapshot: whatever rewrote the table before is seen whole, nothing can rewrite it any more;
    3. look whether the table that was locked is the one that was meant, since LOCK goes by name.

`LOCK` does not take a snapshot, a query does. It takes partitions one after the other: all of it has to end
before somebody who waits for one that we have, and whom we wait for, looks for a deadlock.

While the lock is held, a statement that wants an exclusive lock waits for us, and everybody after it waits
for that statement, our own tasks too. Nobody would ever move then; so no session here waits long for a lock,
and whoever holds the snapshot has it `give_way`: the copy fails as `TableBusy` and is tried again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, LiteralString

import psycopg
from psycopg import pq, sql

from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import (
    NotReady,
    PenstockError,
    ReadDenied,
    SnapshotLost,
    TableBusy,
    UnknownTable,
)
from penstock.model.visibility import Visibility
from penstock.postgres.connection import Connection, connect, explain
from penstock.postgres.exported_snapshot import join, settle

CHUNK_BYTES = 120_000
"""psycopg cuts what is larger into pieces."""
BATCH_ROWS = 10_000
ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class CopyRange:
    """What one task copies: some blocks of one physical table."""

    table: TableName
    """A leaf partition, or the table itself."""
    columns: tuple[str, ...]
    """In the order wanted."""
    first_block: int
    end_block: int | None
    """Not part of it; None: to the end."""
    row_filter: str | None
    """SQL, over the table's columns: only rows for which it is true."""
    bytes: int
    """About how much that is on the server's disk."""
    batch_rows: int = BATCH_ROWS
    """How many rows are read before they are handed on, at most."""

    def query(self, selected: sql.Composable | None = None) -> sql.Composed:
        """A select of its rows; `selected` in place of its columns."""
        columns = selected or sql.SQL(", ").join(map(sql.Identifier, self.columns))
        conditions = [
            sql.SQL("ctid {} {}").format(sql.SQL(sign), sql.Literal(f"({block},0)"))
            for sign, block in ((">=", self.first_block or None), ("<", self.end_block))
            if block is not None
        ]
        if self.row_filter:
            conditions.append(sql.SQL("({}\n)").format(sql.SQL(self.row_filter)))
        return sql.SQL("select {} from only {}{}").format(
            columns,
            sql.Identifier(self.table.schema, self.table.name),
            sql.SQL(" where ") + sql.SQL(" and ").join(conditions) if conditions else sql.SQL(""),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be copied of a table, and in parts of about what size."""

    columns: tuple[str, ...]
    row_filter: str | None = None
    partition_bytes: int = 256 << 20
    batch_rows: int = BATCH_ROWS


class Snapshot:
    """One table, locked, under one snapshot that others can use as long as this is open."""

    def __init__(self, connection: Connection, id: TableId, table: TableName) -> None:
        """Take the snapshot: the connection's transaction has only locked the table so far."""
        row = _one(
            connection,
            "select pg_export_snapshot(), pg_current_snapshot()::text, lsn::text,"
            " left(pg_walfile_name(lsn), 8) from pg_current_wal_insert_lsn() lsn",
        )
        self._connection = connection
        self.id = id
        self.table = table
        self.name = f"{row[0]}/{row[1]}"
        """Under which it is exported, and what it sees: after a crash another one may have that name."""
        self.visibility = Visibility.parse(row[1])
        self.lsn = Lsn.parse(row[2])
        """Everything that the snapshot contains had committed before."""
        self.timeline = int(row[3], 16)
        """On which `lsn` is. On another one there may be other transactions, under the same numbers."""

    @classmethod
    def open(cls, conninfo: str, table: TableId) -> Snapshot:
        connection = connect(conninfo)
        try:
            with explained(table=table):
                if _one(connection, "select pg_is_in_recovery()")[0]:
                    raise NotReady(
                        "a standby does not tell which transactions its snapshot sees",
                        remedy="Copy from the primary: set `host` to it",
                    )
                settle(connection)
                busy = TableBusy("the table is renamed or repartitioned again and again", table=table)
                for _ in range(ATTEMPTS):
                    try:
                        snapshot = cls._take(connection, table)
                    except TableBusy as error:
                        busy, snapshot = error, None
                    if snapshot is not None:
                        return snapshot
                    connection.execute("rollback")
                raise busy
        except BaseException:
            connection.close()
            raise

    @classmethod
    def _take(cls, connection: Connection, table: TableId) -> Snapshot | None:
        """The steps above; None if the table changed its name or its partitions in between."""
        name, partitioned = _named(connection, table)
        lock = sql.SQL("lock table {} {} in access share mode").format(
            sql.SQL("" if partitioned else "only"), sql.Identifier(name.schema, name.name)
        )
        ((most,),) = connection.execute("show lock_timeout")
        with explained(table=name):
            connection.execute("begin isolation level repeatable read read only")
            connection.execute(sql.SQL("set local statement_timeout = {}").format(sql.Literal(most)))
            try:
                connection.execute(lock)
            except psycopg.errors.UndefinedTable:
                return None
            except psycopg.errors.QueryCanceled as error:
                raise _busy(error) from None
            connection.execute("set local statement_timeout = 0")
            taken = cls(connection, table, name)
            unlocked = connection.execute(_UNLOCKED, {"table": table}).fetchall()
            return taken if _named(connection, table)[0] == name and not unlocked else None

    def ranges(
        self,
        columns: Sequence[str],
        row_filter: str | None = None,
        partition_bytes: int = 256 << 20,
        batch_rows: int = BATCH_ROWS,
    ) -> list[CopyRange]:
        """Return disjoint parts of about that size, together the whole table; at least one per partition."""
        wanted = Wanted(tuple(columns), row_filter, partition_bytes, batch_rows)
        with explained(table=self.table):
            return ranges_of(self._connection, self.id, wanted)

    def alive(self) -> None:
        """Raise `SnapshotLost` if the connection is gone, and the exported snapshot with it."""
        self._ask("select 1")

    def give_way(self) -> None:
        """Let the lock go and raise `TableBusy` if a session has waited for it for a moment; raise as `alive`
        does."""
        waiting = self._ask(_WAITING)
        if waiting:
            self._connection.execute("rollback")
            raise TableBusy(
                f"the copy gave way to process {', '.join(map(str, waiting))}, which waited for its lock",
                table=self.table,
                remedy="It is tried again by itself",
            )

    def sessions(self, application_name: str) -> int:
        """Return how many others of that name are connected to the database; raise as `alive` does."""
        self._ask("select pg_stat_clear_snapshot()")  # a transaction sees the first answer again and again
        count: int = self._ask(
            "select count(*) from pg_stat_activity"
            " where application_name = %s and datname = current_database()",
            application_name,
        )
        return count

    def _ask(self, statement: LiteralString, *values: str) -> Any:
        try:
            row = self._connection.execute(statement, values or None).fetchone()
        except psycopg.Error as error:
            raise SnapshotLost(
                f"the connection that held the snapshot was lost: {explain(error).reason}", table=self.table
            ) from None
        assert row is not None
        return row[0]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ranges_of(connection: Connection, table: TableId, wanted: Wanted) -> list[CopyRange]:
    """Return the parts of the table, as the connection's transaction sees it."""
    ranges: list[CopyRange] = []
    for schema, name, blocks, size, hidden, foreign in connection.execute(
        _LEAVES, {"table": table}
    ).fetchall():
        leaf = TableName(schema, name)
        if hidden:
            raise ReadDenied("row-level security hides rows from this role", table=leaf)
        if foreign:
            raise NotReady(
                "it is a foreign table, whose changes are not in this server's WAL",
                remedy="Run `alter table … detach partition …`, or exclude the table",
                table=leaf,
            )
        parts = max(1, min(blocks, -(-size // max(wanted.partition_bytes, 1))))
        bounds: list[Any] = [blocks * part // parts for part in range(parts)] + [None]
        ranges += [
            CopyRange(leaf, wanted.columns, first, end, wanted.row_filter, size // parts, wanted.batch_rows)
            for first, end in pairwise(bounds)
        ]
    return ranges


def copy_out(
    conninfo: str, snapshot: str, part: CopyRange, format: str = "text"
) -> Generator[bytes, None, int]:
    """The rows of a part in one of COPY's formats, cut between rows, `CHUNK_BYTES` at a time, or the part's
    `batch_rows` if that is less; in the end, how many they were. Runs on executors."""
    from penstock.postgres.libpq import Inbox  # Numba takes half a second to import

    with closing(connect(conninfo)) as connection, explained(table=part.table):
        join(connection, snapshot, part.table)
        pgconn = connection.pgconn
        statement = sql.SQL("copy ({}) to stdout (format {})").format(part.query(), sql.Identifier(format))
        _expect(pgconn.exec_(statement.as_bytes(connection)), pq.ExecStatus.COPY_OUT)
        inbox = Inbox(pgconn, CHUNK_BYTES, waits=True, most=part.batch_rows)
        while not inbox.ended:
            inbox.take()
            if inbox.count:
                yield bytes(inbox.empty()[0])
        return _expect(pgconn.get_result(), pq.ExecStatus.COMMAND_OK).command_tuples or 0


def _named(connection: Connection, table: TableId) -> tuple[TableName, bool]:
    row = connection.execute(
        "select n.nspname, c.relname, c.relkind = 'p' from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.oid = %s",
        (table,),
    ).fetchone()
    if row is None:
        raise UnknownTable("the table does not exist any more", table=table)
    return TableName(row[0], row[1]), row[2]


def _one(connection: Connection, statement: str) -> tuple[Any, ...]:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row


def _expect(result: pq.abc.PGresult | None, status: pq.ExecStatus) -> pq.abc.PGresult:
    if result is not None and result.status == status:
        return result
    raise (
        psycopg.errors.error_from_result(result)
        if result is not None and result.error_message
        else psycopg.OperationalError("the server ended the connection")
    )


@contextmanager
def explained(**where: Any) -> Iterator[None]:
    """Raise what PostgreSQL refuses as an error that knows its table."""
    try:
        yield
    except PenstockError as error:
        raise error.at(**where) from None
    except psycopg.Error as error:
        raise refused(error).at(**where) from None


def refused(error: psycopg.Error) -> PenstockError:
    reason = explain(error).reason
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return _busy(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ReadDenied(reason)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return SnapshotLost(f"the table is not what it was: {reason}")
    return explain(error)


def _busy(error: psycopg.Error) -> TableBusy:
    reason = explain(error).reason
    return TableBusy(f"another session has or wants an exclusive lock on the table: {reason}")


_WAITING: LiteralString = """
    select array_agg(distinct pid)
    from pg_locks
    where locktype = 'relation' and not granted and waitstart < clock_timestamp() - interval '0.5 seconds'
      and pg_backend_pid() = any (pg_blocking_pids(pid))
"""

_TREE = sql.SQL("""
    (select %(table)s::regclass as relid union select relid from pg_partition_tree(%(table)s::regclass)) tree
""")

# A table of another access method is one part: its blocks are not ours to count.
_LEAVES = sql.SQL("""
    select n.nspname, c.relname,
           case when a.amname = 'heap'
                then pg_relation_size(c.oid) / current_setting('block_size')::int8 else 0 end,
           coalesce(pg_table_size(c.oid), 0), row_security_active(c.oid), c.relkind = 'f'
    from {}
    join pg_class c on c.oid = tree.relid
    join pg_namespace n on n.oid = c.relnamespace
    left join pg_am a on a.oid = c.relam
    where c.relkind <> 'p'
    order by n.nspname, c.relname
""").format(_TREE)

_UNLOCKED = sql.SQL("""
    select tree.relid
    from {}
    where not exists (
        select from pg_locks l
        where l.pid = pg_backend_pid() and l.locktype = 'relation' and l.relation = tree.relid
          and l.mode = 'AccessShareLock' and l.granted)
""").format(_TREE)

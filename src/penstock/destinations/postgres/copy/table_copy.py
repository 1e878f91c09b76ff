"""A full copy: made aside, by many tasks at once, then put in the place of what was there.

The copy has a table of its own in the schema `penstock`, without index. Each task copies one part of the
source's table into it:

    1. It enters the part in `penstock.copied`. An earlier attempt that committed has done so: nothing is to
       do. One that still runs is waited for here, by the unique key.
    2. It copies.
    3. Commit. A crash before leaves neither the entry nor a row.

Then the key is built, once. Where there is no target yet the table itself becomes it; otherwise its rows take
the place of the target's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.changes.copy_text import copy_text
from penstock.destinations import copy_records
from penstock.destinations.ledger import StreamId
from penstock.destinations.postgres.copy.replace_rows import add_rows, replace_rows
from penstock.destinations.postgres.endpoint import Endpoint
from penstock.destinations.postgres.session import about, is_of_a_row
from penstock.destinations.postgres.table import definition
from penstock.destinations.postgres.table.declared_types import is_binary
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.table.trust import (
    check_free,
    check_rows,
    guard,
    is_made,
    make_target_schema,
    mark,
    unchanged,
)
from penstock.destinations.postgres.write.refused_row import refused_in_copy
from penstock.destinations.postgres.write.staging import copy_lines
from penstock.destinations.protocol import Delivery, Kind, TableCopy
from penstock.destinations.sql_ledger import SqlLedger, lock_target
from penstock.destinations.work import Partition
from penstock.model import TableId, TableName, TableSchema
from penstock.postgres.connection import Connection
from penstock.postgres.snapshot import CopyRange, copy_out

if TYPE_CHECKING:
    pass

SCHEMA = "penstock"


@dataclass(frozen=True, slots=True)
class CopyPart:
    """What one task copies."""

    endpoint: Endpoint
    copy: str
    into: TargetTable
    number: int
    conninfo: str
    snapshot: str
    range: CopyRange
    format: str

    def __repr__(self) -> str:
        return f"CopyPart({self.into.name}, {self.number})"


def set_aside(aside: TargetTable, copy: str) -> TargetTable:
    return replace(aside, table=TableName(SCHEMA, f"copy_{hashlib.sha256(copy.encode()).hexdigest()[:24]}"))


def begin(connection: Connection, endpoint: Endpoint, copy: TableCopy) -> TargetTable:
    """Make the table to copy into and return it. What earlier attempts at the same table left is removed."""
    target = endpoint.target(copy.delivery)
    stream = endpoint.stream(copy.delivery.source)
    known = SqlLedger(connection, stream).known(copy.delivery.id).get(copy.delivery.id)
    drop(connection, stream, copy.delivery.id)
    check_free(connection, endpoint, copy.delivery)
    aside = set_aside(target, copy.id)
    if not definition.exists(connection, target.name):
        if not endpoint.create_tables:
            raise definition.missing(target)
        definition.make(connection, aside)
    elif (known is not None and known.made) or is_made(connection, stream, target):
        definition.check_kind(connection, target)
        definition.make(connection, aside)
    else:
        definition.check(connection, target)
        check_rows(connection, endpoint, target)
        definition.make_like(connection, aside, target)
    definition.set_defaults(connection, aside, on=True)
    nothing = copy.rows is None and not copy.ranges
    copy_records.begin(
        connection,
        stream,
        copy.delivery.id,
        copy.id,
        aside.name.name,
        _document(copy.delivery),
        empty=nothing,
    )
    return aside


def format_for(connection: Connection, aside: TargetTable) -> str:
    """Return the COPY format in which rows go from server to server: binary where the types are the same."""
    rows = connection.execute(
        "select attname, atttypid::bigint from pg_attribute where attrelid = to_regclass(%s)",
        (f"{SCHEMA}.{aside.name.name}",),
    ).fetchall()
    there: dict[str, int] = dict(rows)
    columns = aside.delivery.table.columns
    same = all(there.get(column.name) == column.type.oid and is_binary(column.type) for column in columns)
    return "binary" if same else "text"


def drop(connection: Connection, stream: StreamId, table: TableId | None = None) -> None:
    """Drop copies of a table, or of all, that were not handed over."""
    names = copy_records.drop(connection, stream, table)
    connection.execute(
        "delete from penstock.copied c where not exists (select from penstock.copies where copy = c.copy)"
    )
    for name in names:
        connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(SCHEMA, name)))


def copy_part(part: CopyPart) -> None:
    """Runs on executors."""
    blocks = copy_out(part.conninfo, part.snapshot, part.range, part.format)
    with part.endpoint.session() as connection, about(part.into.delivery.table.name):
        try:
            with connection.transaction():
                write_part(connection, part.copy, part.into, (part.number, blocks), part.format)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            again = copy_out(part.conninfo, part.snapshot, part.range)
            raise refused_in_copy(connection, part.into, error, again) from None


def copy_partition(endpoint: Endpoint, copy: str, into: TargetTable, partition: Partition) -> None:
    """Rows that Spark made: each partition is a part. Runs on executors."""
    number, batches = partition
    blocks = (block for batch in batches for block in copy_text(batch.columns))
    with endpoint.session() as connection, about(into.delivery.table.name):
        write_part(connection, copy, into, (number, blocks))


def write_part(
    connection: Connection,
    copy: str,
    into: TargetTable,
    part: tuple[int, Iterable[bytes | memoryview]],
    format: str = "text",
) -> None:
    """Runs on executors."""
    number, blocks = part
    copy_records.refuse_if_gone(connection, copy)
    fresh = connection.execute(
        "insert into penstock.copied (copy, part, rows) values (%s, %s, 0) on conflict do nothing",
        (copy, number),
    ).rowcount
    if not fresh:
        return
    columns = [sql.Identifier(name) for name in into.columns]
    rows = copy_lines(connection, into.identifier, columns, blocks, format)
    connection.execute(
        "update penstock.copied set rows = %s where copy = %s and part = %s", (rows, copy, number)
    )


def finish(connection: Connection, aside: TargetTable, copy: str) -> int:
    """Build, when all is copied, what can be built before the hand-over; return how many rows there are."""
    definition.set_defaults(connection, aside, on=False)
    if becomes_target(connection, replace(aside, table=None)):
        definition.make_key(connection, aside)
    connection.execute(sql.SQL("analyze {}").format(aside.identifier))
    copy_records.finish(connection, copy)
    row = connection.execute("select sum(rows) from penstock.copied where copy = %s", (copy,)).fetchone()
    return int(row[0] or 0) if row else 0


def becomes_target(connection: Connection, target: TargetTable) -> bool:
    return target.source_column is None and not definition.exists(connection, target.name)


def hand_over(connection: Connection, endpoint: Endpoint, copy: str, *, made: bool) -> TargetTable:
    """Put a finished copy in its target's place (`made`: that is ours); return the target as it is then."""
    record = copy_records.take(connection, copy)
    connection.execute("delete from penstock.copied where copy = %s", (copy,))
    target = _target(connection, endpoint, record, made=made)
    aside = set_aside(target, copy)
    lock_target(connection, target.name)
    check_free(connection, endpoint, target.delivery)
    if becomes_target(connection, target):
        _rename(connection, aside, target)
        return replace(target, ours=True)
    if not definition.exists(connection, target.name):
        target = replace(target, ours=True)
        definition.make(connection, target)
        definition.make_key(connection, target)
    guarded = guard(connection, target)
    target = replace(target, referenced=guarded.referenced, cascades=guarded.cascades)
    check_rows(connection, endpoint, target)
    if not record.empty:  # if nothing was to be copied, what is there stays
        replace_rows(connection, aside, target, record.begun_at)
    unchanged(connection, guarded, target)
    connection.execute(sql.SQL("drop table {}").format(aside.identifier))
    connection.execute(sql.SQL("analyze {}").format(target.identifier))
    return target


def begin_hand_over(connection: Connection, endpoint: Endpoint, copy: str, *, made: bool) -> None:
    """Bring the copy's rows to a target whose own cannot go yet: others may wait for them."""
    record = copy_records.finished(connection, copy)
    target = _target(connection, endpoint, record, made=made)
    guarded = guard(connection, target)
    check_rows(connection, endpoint, target)
    if guarded.referenced and not record.empty:
        add_rows(connection, set_aside(target, copy), target)
    unchanged(connection, guarded, target)


def _target(
    connection: Connection, endpoint: Endpoint, record: copy_records.CopyRecord, *, made: bool
) -> TargetTable:
    target = endpoint.target(_delivery(record.source, record.document))
    return replace(target, ours=made or is_made(connection, endpoint.stream(record.source), target))


def _document(delivery: Delivery) -> dict[str, Any]:
    """Return the delivery as JSON: a copy is handed over as what it was made for."""
    return {
        "table": delivery.table.to_dict(),
        "target": [delivery.target.schema, delivery.target.name],
        "kind": delivery.kind.value,
        "primary_key": list(delivery.primary_key),
    }


def _delivery(source: str, document: dict[str, Any]) -> Delivery:
    return Delivery(
        source,
        TableSchema.from_dict(document["table"]),
        TableName(*document["target"]),
        Kind(document["kind"]),
        tuple(document["primary_key"]),
    )


def _rename(connection: Connection, aside: TargetTable, target: TargetTable) -> None:
    """Rename the table, and its indexes where the new name is free."""
    make_target_schema(connection, target)
    mark(connection, aside)
    indexes = connection.execute(
        "select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid"
        " where i.indrelid = to_regclass(%s)",
        (f"{SCHEMA}.{aside.name.name}",),
    ).fetchall()
    schema = sql.Identifier(target.name.schema)
    if target.name.schema != SCHEMA:  # first: a table may have the name that one of ours has
        connection.execute(sql.SQL("alter table {} set schema {}").format(aside.identifier, schema))
    moved = sql.Identifier(target.name.schema, aside.name.name)
    connection.execute(sql.SQL("alter table {} rename to {}").format(moved, sql.Identifier(target.name.name)))
    for (name,) in indexes:
        wanted = f"{target.name.name.encode()[:56].decode(errors='ignore')}_pkey"
        taken = connection.execute(
            "select from pg_class c join pg_namespace n on n.oid = relnamespace"
            " where nspname = %s and relname = %s",
            (target.name.schema, wanted),
        ).fetchone()
        if taken is None and not target.history:
            connection.execute(
                sql.SQL("alter index {} rename to {}").format(
                    sql.Identifier(target.name.schema, name), sql.Identifier(wanted)
                )
            )

"""Schema changes of the source, followed at the destination, in the transaction that writes the rows.

A table that we made becomes what the source's is. In one that the user made columns are added and renamed,
but never dropped, and their types stay. Where several sources meet, each may have its own version for a
while: then nothing is dropped either, and a renamed column is a new one that takes the old one's values over.
So it is, too, where a column of a user's table gets the name of one that stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from psycopg import sql

from penstock.destinations.postgres.table import definition
from penstock.destinations.postgres.table.declared_types import declared
from penstock.destinations.postgres.table.target_table import TargetTable, comma
from penstock.destinations.postgres.table.trust import (
    Guarded,
    guard,
    make_target_schema,
    mark,
    unchanged,
)
from penstock.destinations.schema_change import Add, Drop, Rename, Retype, SchemaChange, Step
from penstock.model import Column, TableName
from penstock.model.errors import TargetTaken
from penstock.postgres.connection import Connection


def follow(connection: Connection, target: TargetTable, change: SchemaChange) -> None:
    """Change the table to what the delivery of `target` describes."""
    guarded = guard(connection, target, _present(connection, change.target) or target.name)
    if change.target is not None and change.target != target.name:
        guarded = _move(connection, change.target, target) or guarded
    there = definition.columns_of(connection, target.name)
    if target.source_column is not None or _meets_others(target, change, there):
        _take_over(connection, target, change)
    else:
        for step in change.steps(there):
            _take_step(connection, target, step)
    unchanged(connection, guarded, target)


def _present(connection: Connection, table: TableName | None) -> TableName | None:
    return table if table is not None and definition.exists(connection, table) else None


def align(connection: Connection, target: TargetTable) -> None:
    """Do the same for a table that is about to be filled anew, whatever it was before."""
    if not target.ours:
        definition.check(connection, target)
        return
    existing = definition.columns_of(connection, target.name)
    for name in existing:
        if name not in target.columns and name not in definition.defaults(target):
            _drop(connection, target, name)
    for column in target.delivery.table.columns:
        if column.name in existing:
            _retype(connection, target, column)
        else:
            _add(connection, target, column, None)
    rekey(connection, target)


class PrimaryKey(NamedTuple):
    constraint: str
    columns: Sequence[str]


def rekey(connection: Connection, target: TargetTable) -> None:
    """Let the primary key be what rows are found by. A user's own constraint is left alone."""
    if not target.ours or target.history:
        return
    wanted = [*([target.source_column] if target.source_column and target.key else []), *target.key]
    key = _primary_key(connection, target)
    if list(key.columns if key else ()) == wanted:
        return
    if key is not None:
        _drop_key(connection, target, key, kept=wanted)
    definition.make_key(connection, target)


def _primary_key(connection: Connection, target: TargetTable) -> PrimaryKey | None:
    row = connection.execute(
        """
        select c.conname, array(
            select a.attname from unnest(c.conkey) with ordinality k (attnum, place)
            join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.attnum order by place)::text[]
        from pg_constraint c
        join pg_class r on r.oid = c.conrelid
        join pg_namespace n on n.oid = r.relnamespace
        where c.contype = 'p' and n.nspname = %s and r.relname = %s
        """,
        (target.name.schema, target.name.name),
    ).fetchone()
    return PrimaryKey(*row) if row is not None else None


def _drop_key(
    connection: Connection, target: TargetTable, key: PrimaryKey, kept: Collection[str] = ()
) -> None:
    """Its columns may be null again, but for those that are `kept` in the next one."""
    _alter(connection, target, sql.SQL("drop constraint {}").format(sql.Identifier(key.constraint)))
    for name in key.columns:
        if name not in kept and name != target.source_column:
            _alter(connection, target, sql.SQL("alter {} drop not null").format(sql.Identifier(name)))


def _move(connection: Connection, old: TableName, target: TargetTable) -> Guarded | None:
    """Move the table to its new name at the destination; return what it is then, if another one."""
    if not definition.exists(connection, old):
        return None
    _refuse_if_taken(connection, target)
    make_target_schema(connection, target)
    before = sql.Identifier(old.schema, old.name)
    if target.source_column is not None:
        return _move_rows(connection, old, target)
    if old.schema != target.name.schema:
        connection.execute(
            sql.SQL("alter table {} set schema {}").format(before, sql.Identifier(target.name.schema))
        )
        before = sql.Identifier(target.name.schema, old.name)
    if old.name != target.name.name:
        connection.execute(
            sql.SQL("alter table {} rename to {}").format(before, sql.Identifier(target.name.name))
        )
    return None


def _refuse_if_taken(connection: Connection, target: TargetTable) -> None:
    """Raise if something at the destination has the new name. Where sources meet only its rows count."""
    if not definition.exists(connection, target.name):
        return
    if target.source_column is not None:
        rows = sql.SQL("select from {} t where {} limit 1").format(target.identifier, target.own("t"))
        if connection.execute(rows).fetchone() is None:
            return
    raise TargetTaken("it has another name now, which something at the destination has", target=target.name)


def _move_rows(connection: Connection, old: TableName, target: TargetTable) -> Guarded:
    """Move this source's rows; those of the others stay in the old table."""
    before = sql.Identifier(old.schema, old.name)
    if not definition.exists(connection, target.name):
        connection.execute(
            sql.SQL("create table {} (like {} including all)").format(target.identifier, before)
        )
        mark(connection, target)
    guarded = guard(connection, target)
    shared = (
        definition.columns_of(connection, target.name).keys() & definition.columns_of(connection, old).keys()
    )
    columns = comma(sql.Identifier(name) for name in sorted(shared))
    connection.execute(
        sql.SQL(
            "with moved as (delete from {} t where {} returning t.*) insert into {} ({}) select {} from moved"
        ).format(before, target.own("t"), target.identifier, columns, columns)
    )
    return guarded


def _drop(connection: Connection, target: TargetTable, name: str) -> None:
    existing = definition.columns_of(connection, target.name)
    if name not in existing:
        return
    if target.ours and target.source_column is None:
        key = _primary_key(connection, target)
        if key is not None and name in key.columns:  # or it goes with the column, and what it left not null
            _drop_key(connection, target, key)
        _alter(connection, target, sql.SQL("drop column {}").format(sql.Identifier(name)))
    elif existing[name]:
        _alter(connection, target, sql.SQL("alter column {} drop not null").format(sql.Identifier(name)))


def _meets_others(target: TargetTable, change: SchemaChange, there: Collection[str]) -> bool:
    """Whether, in a user's table, a column is to have the name of one that is not ours to drop."""
    freed = {old for old, _ in change.renamed}
    return not target.ours and any(new in there and new not in freed for _, new in change.renamed)


def _take_step(connection: Connection, target: TargetTable, step: Step) -> None:
    match step:
        case Drop(name):
            _drop(connection, target, name)
        case Rename(old, new):
            _rename(connection, target, old, new)
        case Add(column, value):
            _add(connection, target, column, value)
        case Retype(column):
            _retype(connection, target, column)


def _rename(connection: Connection, target: TargetTable, old: str, new: str) -> None:
    if old not in definition.columns_of(connection, target.name):
        return
    names = sql.Identifier(old), sql.Identifier(new)
    _alter(connection, target, sql.SQL("rename column {} to {}").format(*names))


def _take_over(connection: Connection, target: TargetTable, change: SchemaChange) -> None:
    """Rename no column: those of the new names take the values over, all at once, since names may be
    swapped. Otherwise it is done in the same order."""
    there = definition.columns_of(connection, target.name)
    columns = {column.name: column for column in target.delivery.table.columns}
    pairs = [(old, new) for old, new in change.renamed if old in there]
    for _, new in pairs:
        if new not in there:
            _add(connection, target, columns[new], None)
    for name in {*change.dropped, *({old for old, _ in pairs} - {new for _, new in pairs})}:
        _drop(connection, target, name)
    if pairs:
        _update(
            connection,
            target,
            [sql.SQL("{} = t.{}").format(sql.Identifier(new), sql.Identifier(old)) for old, new in pairs],
        )
    for step in replace(change, dropped=(), renamed=()).steps():
        _take_step(connection, target, step)


def _add(connection: Connection, target: TargetTable, column: Column, value: str | None) -> None:
    """Add a column; rows that are there get the value that they have at the source. It may exist already:
    as another source's, or from a column of that name which was not ours to drop."""
    name = sql.Identifier(column.name)
    there = column.name in definition.columns_of(connection, target.name)
    type = declared(connection, column.type, target)
    if not there and (target.source_column is not None or value is None):
        _alter(connection, target, sql.SQL("add column {} {}").format(name, type))
    if not there and target.source_column is None and value is not None:
        default = sql.SQL("add column {} {} default {}").format(name, type, sql.Literal(value))
        _alter(connection, target, default)
        _alter(connection, target, sql.SQL("alter column {} drop default").format(name))
    elif value is not None:
        _update(connection, target, [sql.SQL("{} = {}").format(name, sql.Literal(value))])
    elif there:
        _update(connection, target, [sql.SQL("{} = null").format(name)], filled=name)


def _retype(connection: Connection, target: TargetTable, column: Column) -> None:
    if not target.ours:
        return
    row = connection.execute(
        """
        select format_type(a.atttypid, a.atttypmod)
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s and a.attname = %s and not a.attisdropped
        """,
        (target.name.schema, target.name.name, column.name),
    ).fetchone()
    wanted = declared(connection, column.type, target)
    if row is None or row[0] == wanted.as_string(connection):
        return
    _alter(
        connection,
        target,
        sql.SQL("alter column {0} type {1} using {0}::text::{1}").format(sql.Identifier(column.name), wanted),
    )


def _alter(connection: Connection, target: TargetTable, change: sql.Composable) -> None:
    connection.execute(sql.SQL("alter table {} {}").format(target.identifier, change))


def _update(
    connection: Connection,
    target: TargetTable,
    changes: list[sql.Composable],
    filled: sql.Identifier | None = None,
) -> None:
    """Update all of this source's rows, or those that have something in the column `filled`."""
    rows = target.own("t")
    if filled is not None:
        rows = sql.SQL("{} and num_nonnulls(t.{}) > 0").format(rows, filled)
    connection.execute(sql.SQL("update {} t set {} where {}").format(target.identifier, comma(changes), rows))

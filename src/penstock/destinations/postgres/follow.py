"""Schema changes of the source, followed at the destination, in the transaction that writes the rows.

A table that we made becomes what the source's is. In one that the user made columns are added and renamed,
but never dropped, and their types stay. Where several sources meet, each may have its own version for a
while: then nothing is dropped either, and a renamed column is a new one that takes the old one's values over.
So it is, too, where a column of a user's table gets the name of one that stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from psycopg import sql

from penstock.destinations.postgres import tables
from penstock.destinations.postgres.guarding import (
    Guarded,
    guard,
    make_target_schema,
    mark,
    unchanged,
)
from penstock.destinations.postgres.place import Place, comma
from penstock.destinations.postgres.types import declared
from penstock.destinations.schema_change import Add, Drop, Rename, Retype, SchemaChange, Step
from penstock.model import Column, TableName
from penstock.model.errors import TargetTaken
from penstock.postgres.connection import Connection


def follow(connection: Connection, place: Place, change: SchemaChange) -> None:
    """Bring the table to what the delivery of `place` has it."""
    guarded = guard(connection, place, _present(connection, change.target) or place.name)
    if change.target is not None and change.target != place.name:
        guarded = _move(connection, change.target, place) or guarded
    there = tables.columns_of(connection, place.name)
    if place.source_column is not None or _meets_others(place, change, there):
        _take_over(connection, place, change)
    else:
        for step in change.steps(there):
            _take_step(connection, place, step)
    unchanged(connection, guarded, place)


def _present(connection: Connection, table: TableName | None) -> TableName | None:
    return table if table is not None and tables.exists(connection, table) else None


def align(connection: Connection, place: Place) -> None:
    """The same for a table that is about to be filled anew, whatever it was before."""
    if not place.ours:
        tables.check(connection, place)
        return
    found = tables.columns_of(connection, place.name)
    for name in found:
        if name not in place.columns and name not in tables.defaults(place):
            _drop(connection, place, name)
    for column in place.delivery.table.columns:
        if column.name in found:
            _retype(connection, place, column)
        else:
            _add(connection, place, column, None)
    rekey(connection, place)


def rekey(connection: Connection, place: Place) -> None:
    """Let the primary key be what rows are found by. A user's own constraint is left alone."""
    if not place.ours or place.history:
        return
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
        (place.name.schema, place.name.name),
    ).fetchone()
    wanted = [*([place.source_column] if place.source_column and place.key else []), *place.key]
    if (row[1] if row else []) == wanted:
        return
    if row is not None:
        _alter(connection, place, sql.SQL("drop constraint {}").format(sql.Identifier(row[0])))
        for name in row[1]:
            if name not in wanted and name != place.source_column:
                _alter(connection, place, sql.SQL("alter {} drop not null").format(sql.Identifier(name)))
    tables.make_key(connection, place)


def _move(connection: Connection, old: TableName, place: Place) -> Guarded | None:
    """The table has another name at the destination; what it is then, if another one."""
    if not tables.exists(connection, old):
        return None
    _refuse_if_taken(connection, place)
    make_target_schema(connection, place)
    before = sql.Identifier(old.schema, old.name)
    if place.source_column is not None:
        return _move_rows(connection, old, place)
    if old.schema != place.name.schema:
        connection.execute(
            sql.SQL("alter table {} set schema {}").format(before, sql.Identifier(place.name.schema))
        )
        before = sql.Identifier(place.name.schema, old.name)
    if old.name != place.name.name:
        connection.execute(
            sql.SQL("alter table {} rename to {}").format(before, sql.Identifier(place.name.name))
        )
    return None


def _refuse_if_taken(connection: Connection, place: Place) -> None:
    """What has the new name was another table's, or is it still. Where sources meet only its rows count."""
    if not tables.exists(connection, place.name):
        return
    if place.source_column is not None:
        rows = sql.SQL("select from {} t where {} limit 1").format(place.identifier, place.own("t"))
        if connection.execute(rows).fetchone() is None:
            return
    raise TargetTaken("it has another name now, which something at the destination has", target=place.name)


def _move_rows(connection: Connection, old: TableName, place: Place) -> Guarded:
    """The other sources' rows stay in the old one."""
    before = sql.Identifier(old.schema, old.name)
    if not tables.exists(connection, place.name):
        connection.execute(
            sql.SQL("create table {} (like {} including all)").format(place.identifier, before)
        )
        mark(connection, place)
    guarded = guard(connection, place)
    shared = tables.columns_of(connection, place.name).keys() & tables.columns_of(connection, old).keys()
    columns = comma(sql.Identifier(name) for name in sorted(shared))
    connection.execute(
        sql.SQL(
            "with moved as (delete from {} t where {} returning t.*) insert into {} ({}) select {} from moved"
        ).format(before, place.own("t"), place.identifier, columns, columns)
    )
    return guarded


def _drop(connection: Connection, place: Place, name: str) -> None:
    found = tables.columns_of(connection, place.name)
    if name not in found:
        return
    if place.ours and place.source_column is None:
        _alter(connection, place, sql.SQL("drop column {}").format(sql.Identifier(name)))
    elif found[name]:
        _alter(connection, place, sql.SQL("alter column {} drop not null").format(sql.Identifier(name)))


def _meets_others(place: Place, change: SchemaChange, there: Collection[str]) -> bool:
    """Whether, in a user's table, a column is to have the name of one that is not ours to drop."""
    freed = {old for old, _ in change.renamed}
    return not place.ours and any(new in there and new not in freed for _, new in change.renamed)


def _take_step(connection: Connection, place: Place, step: Step) -> None:
    match step:
        case Drop(name):
            _drop(connection, place, name)
        case Rename(old, new):
            _rename(connection, place, old, new)
        case Add(column, value):
            _add(connection, place, column, value)
        case Retype(column):
            _retype(connection, place, column)


def _rename(connection: Connection, place: Place, old: str, new: str) -> None:
    if old not in tables.columns_of(connection, place.name):
        return
    names = sql.Identifier(old), sql.Identifier(new)
    _alter(connection, place, sql.SQL("rename column {} to {}").format(*names))


def _take_over(connection: Connection, place: Place, change: SchemaChange) -> None:
    """No column is renamed: those of the new names take the values over, all at once, since names may be
    swapped. Otherwise it is done in the same order."""
    there = tables.columns_of(connection, place.name)
    columns = {column.name: column for column in place.delivery.table.columns}
    pairs = [(old, new) for old, new in change.renamed if old in there]
    for _, new in pairs:
        if new not in there:
            _add(connection, place, columns[new], None)
    for name in {*change.dropped, *({old for old, _ in pairs} - {new for _, new in pairs})}:
        _drop(connection, place, name)
    if pairs:
        _update(
            connection,
            place,
            [sql.SQL("{} = t.{}").format(sql.Identifier(new), sql.Identifier(old)) for old, new in pairs],
        )
    for step in replace(change, dropped=(), renamed=()).steps():
        _take_step(connection, place, step)


def _add(connection: Connection, place: Place, column: Column, value: str | None) -> None:
    """A new column; rows that are there have the value in it that they have at the source. It may be there:
    as another source's, or from a column of that name which was not ours to drop."""
    name = sql.Identifier(column.name)
    there = column.name in tables.columns_of(connection, place.name)
    type = declared(connection, column.type, place)
    if not there and (place.source_column is not None or value is None):
        _alter(connection, place, sql.SQL("add column {} {}").format(name, type))
    if not there and place.source_column is None and value is not None:
        default = sql.SQL("add column {} {} default {}").format(name, type, sql.Literal(value))
        _alter(connection, place, default)
        _alter(connection, place, sql.SQL("alter column {} drop default").format(name))
    elif value is not None:
        _update(connection, place, [sql.SQL("{} = {}").format(name, sql.Literal(value))])
    elif there:
        _update(connection, place, [sql.SQL("{} = null").format(name)], filled=name)


def _retype(connection: Connection, place: Place, column: Column) -> None:
    if not place.ours:
        return
    row = connection.execute(
        """
        select format_type(a.atttypid, a.atttypmod)
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s and a.attname = %s and not a.attisdropped
        """,
        (place.name.schema, place.name.name, column.name),
    ).fetchone()
    wanted = declared(connection, column.type, place)
    if row is None or row[0] == wanted.as_string(connection):
        return
    _alter(
        connection,
        place,
        sql.SQL("alter column {0} type {1} using {0}::text::{1}").format(sql.Identifier(column.name), wanted),
    )


def _alter(connection: Connection, place: Place, change: sql.Composable) -> None:
    connection.execute(sql.SQL("alter table {} {}").format(place.identifier, change))


def _update(
    connection: Connection, place: Place, changes: list[sql.Composable], filled: sql.Identifier | None = None
) -> None:
    """Of this source's rows all, or those that have something in the column `filled`."""
    rows = place.own("t")
    if filled is not None:
        rows = sql.SQL("{} and num_nonnulls(t.{}) > 0").format(rows, filled)
    connection.execute(sql.SQL("update {} t set {} where {}").format(place.identifier, comma(changes), rows))

"""Tables at the destination: made as the source has them, or found as the user made them.

A table that the user made is his: its types win, columns that the source does not have are left alone. It
must have those that the source has. One that we made follows the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg import sql

from penstock.destinations.postgres.guarding import guard, make_target_schema, mark
from penstock.destinations.postgres.place import (
    DELETED,
    END,
    FIRST,
    OPEN,
    START,
    Place,
    comma,
    names,
)
from penstock.destinations.postgres.types import FIRST_USER_OID, declared
from penstock.model import TableName
from penstock.model.errors import TargetUnfit
from penstock.postgres.connection import Connection


def exists(connection: Connection, table: TableName) -> bool:
    return bool(columns_of(connection, table))


def columns_of(connection: Connection, table: TableName) -> dict[str, bool]:
    """The columns of a table, each with whether an insert must give it; none if there is no such table."""
    rows = connection.execute(
        """
        select a.attname, a.attnotnull and not a.atthasdef and a.attidentity = ''
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p', 'v', 'm', 'f')
        order by a.attnum
        """,
        (table.schema, table.name),
    )
    return {name: bool(needed) for name, needed in rows}


def types_of(connection: Connection, table: TableName) -> dict[str, sql.Composable]:
    """The types of a table's columns, without their modifiers."""
    rows = connection.execute(
        """
        select a.attname, format_type(a.atttypid, -1)
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
        """,
        (table.schema, table.name),
    )
    return {name: sql.SQL(type) for name, type in rows}


def make(connection: Connection, place: Place) -> None:
    """The table as the source's is, without key. A schema that is missing is made with it."""
    _check_fit(place)
    make_target_schema(connection, place)
    required = [] if place.history else place.key  # or the primary key looks through all rows for a NULL
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            declared(connection, column.type, place),
            sql.SQL(" not null" if column.name in required else ""),
        )
        for column in place.delivery.table.columns
    ]
    if place.source_column is not None:
        columns.insert(0, sql.SQL("{} text not null").format(sql.Identifier(place.source_column)))
    if place.history:
        columns += [
            sql.SQL("{} timestamptz not null").format(sql.Identifier(START)),
            sql.SQL("{} timestamptz not null").format(sql.Identifier(END)),
            sql.SQL("{} boolean not null").format(sql.Identifier(DELETED)),
        ]
    connection.execute(sql.SQL("create table {} ({})").format(place.identifier, comma(columns)))
    mark(connection, place)


def make_key(connection: Connection, place: Place) -> None:
    """What rows are found by: the primary key, or in a history an index."""
    key = ([place.source_column] if place.source_column else []) + list(place.key)
    if not place.key:
        return
    if place.history:
        statement = sql.SQL("create index on {} ({})")
        key.append(END)
    else:
        statement = sql.SQL("alter table {} add primary key ({})")
    connection.execute(statement.format(place.identifier, names(key)))


def defaults(place: Place) -> dict[str, str]:
    """What a copied row has in the columns that the source does not deliver."""
    found = {place.source_column: place.delivery.source} if place.source_column else {}
    return found | ({START: FIRST, END: OPEN, DELETED: "false"} if place.history else {})


def set_defaults(connection: Connection, place: Place, *, on: bool) -> None:
    for column, value in defaults(place).items():
        change = sql.SQL("set default {}").format(sql.Literal(value)) if on else sql.SQL("drop default")
        connection.execute(
            sql.SQL("alter table {} alter column {} {}").format(
                place.identifier, sql.Identifier(column), change
            )
        )


def with_equalities(connection: Connection, place: Place) -> Place:
    """Ready for statements that find rows by their key. In a table of ours only a column whose type is not
    PostgreSQL's own has to be asked about; a user's may have any."""
    key = [column for column in place.delivery.table.columns if column.name in place.key]
    if place.ours and all(column.type.base.oid < FIRST_USER_OID for column in key):
        return place
    rows = connection.execute(_EQUALITIES, (list(place.key), place.name.schema, place.name.name)).fetchall()
    return replace(place, equalities=tuple((name, schema, operator) for name, schema, operator in rows))


def with_traits(connection: Connection, place: Place) -> Place:
    """The same, and knowing which columns of a user's table cannot be written as others are."""
    place = with_equalities(connection, place)
    if place.ours:
        return place
    rows = connection.execute(
        """
        select a.attname, a.attgenerated <> ''
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
          and (a.attgenerated <> '' or a.attidentity = 'a')
        """,
        (place.name.schema, place.name.name),
    ).fetchall()
    return replace(
        place,
        computed=frozenset(name for name, generated in rows if generated and name in place.columns),
        fixed=frozenset(name for name, generated in rows if not generated and name in place.columns),
    )


# The equality of a type's default operator class, which nobody but a superuser makes.
_EQUALITIES = """
    with recursive bases as (
        select a.attname, t.oid, t.typbasetype
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        join pg_type t on t.oid = a.atttypid
        where a.attname = any (%s) and n.nspname = %s and c.relname = %s
        union all
        select b.attname, t.oid, t.typbasetype from bases b join pg_type t on t.oid = b.typbasetype
    )
    select b.attname, s.nspname, o.oprname
    from bases b
    join pg_opclass k on k.opcintype = b.oid and k.opcdefault
    join pg_am m on m.oid = k.opcmethod and m.amname = 'btree'
    join pg_amop p on p.amopfamily = k.opcfamily and p.amopstrategy = 3
     and p.amoplefttype = k.opcintype and p.amoprighttype = k.opcintype
    join pg_operator o on o.oid = p.amopopr
    join pg_namespace s on s.oid = o.oprnamespace
    where s.nspname <> 'pg_catalog'
"""


def check(connection: Connection, place: Place) -> None:
    """That a table which is there takes what the source delivers, and is nobody's who could use us."""
    _check_fit(place)
    guard(connection, replace(place, ours=False))
    found = columns_of(connection, place.name)
    wanted = [*place.columns, *defaults(place)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise TargetUnfit(
            f"the table at the destination has no column {listed(missing)}",
            target=place.name,
            remedy="Add what is missing (alter table … add column …), or drop the table and let Penstock "
            "create it; then `penstock retry CONFIG TABLE`",
        )
    needed = [name for name, needed in found.items() if needed and name not in wanted]
    if needed:
        raise TargetUnfit(
            f"the column {listed(needed)} at the destination must have a value, and the source has none",
            target=place.name,
            remedy="Give it a default or let it be null, then `penstock retry CONFIG TABLE`",
        )


def missing(place: Place) -> TargetUnfit:
    """There is no table, and none is to be made."""
    return TargetUnfit(
        "the table does not exist at the destination",
        target=place.name,
        remedy="Create it (create table …), or set `create_tables: true`; then `penstock retry CONFIG TABLE`",
    )


def _check_fit(place: Place) -> None:
    taken = [name for name in defaults(place) if name in place.columns]
    if taken:
        raise TargetUnfit(
            f"the source's table has a column {listed(taken)}, which Penstock adds itself",
            target=place.name,
            remedy="Leave the column out (`drop`), or choose another `source_column` or `kind`",
        )
    if place.history and not place.key:
        raise TargetUnfit(
            "the versions of a row are told apart by its key, and the table has none",
            target=place.name,
            remedy="Give the table a primary key, or deliver it as `kind: clone` or `append`",
        )


def listed(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def make_like(connection: Connection, place: Place, model: Place) -> None:
    """A table as another one is, which the user made: with what it refuses, so that it is refused early."""
    connection.execute(
        sql.SQL("create table {} (like {} including defaults including constraints)").format(
            place.identifier, model.identifier
        )
    )
    for name in columns_of(connection, place.name):
        if name not in place.columns and name not in defaults(place):  # what fills it is not in the likeness
            connection.execute(
                sql.SQL("alter table {} alter {} drop not null").format(
                    place.identifier, sql.Identifier(name)
                )
            )

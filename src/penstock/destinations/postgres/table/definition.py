"""Tables at the destination: made as the source has them, or found as the user made them.

A table that the user made is his: its types win, columns that the source does not have are left alone. It
must have those that the source has. One that we made follows the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg import sql

from penstock.destinations.postgres.table.declared_types import declared
from penstock.destinations.postgres.table.target_table import (
    DELETED,
    END,
    FIRST,
    OPEN,
    START,
    TargetTable,
    comma,
    names,
)
from penstock.destinations.postgres.table.trust import guard, make_target_schema, mark
from penstock.model import TableName
from penstock.model.errors import TargetUnfit
from penstock.model.schema import FIRST_USER_OID
from penstock.postgres.connection import Connection


def exists(connection: Connection, table: TableName) -> bool:
    return bool(columns_of(connection, table))


def columns_of(connection: Connection, table: TableName) -> dict[str, bool]:
    """Return a table's columns, each with whether an insert must give it; none if there is no such table."""
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
    """Return the types of a table's columns, without their modifiers."""
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


def make(connection: Connection, target: TargetTable) -> None:
    """Make the table as the source's is, without key. A schema that is missing is made with it."""
    _check_fit(target)
    make_target_schema(connection, target)
    required = [] if target.history else target.key  # otherwise the primary key would scan all rows for NULLs
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            declared(connection, column.type, target),
            sql.SQL(" not null" if column.name in required else ""),
        )
        for column in target.delivery.table.columns
    ]
    if target.source_column is not None:
        columns.insert(0, sql.SQL("{} text not null").format(sql.Identifier(target.source_column)))
    if target.history:
        columns += [
            sql.SQL("{} timestamptz not null").format(sql.Identifier(START)),
            sql.SQL("{} timestamptz not null").format(sql.Identifier(END)),
            sql.SQL("{} boolean not null").format(sql.Identifier(DELETED)),
        ]
    connection.execute(sql.SQL("create table {} ({})").format(target.identifier, comma(columns)))
    mark(connection, target)


def make_key(connection: Connection, target: TargetTable) -> None:
    """Make what rows are found by: the primary key, or in a history an index."""
    key = ([target.source_column] if target.source_column else []) + list(target.key)
    if not target.key:
        return
    if target.history:
        statement = sql.SQL("create index on {} ({})")
        key.append(END)
    else:
        statement = sql.SQL("alter table {} add primary key ({})")
    connection.execute(statement.format(target.identifier, names(key)))


def defaults(target: TargetTable) -> dict[str, str]:
    """Return what a copied row has in the columns that the source does not deliver."""
    values = {target.source_column: target.delivery.source} if target.source_column else {}
    return values | ({START: FIRST, END: OPEN, DELETED: "false"} if target.history else {})


def set_defaults(connection: Connection, target: TargetTable, *, on: bool) -> None:
    for column, value in defaults(target).items():
        change = sql.SQL("set default {}").format(sql.Literal(value)) if on else sql.SQL("drop default")
        connection.execute(
            sql.SQL("alter table {} alter column {} {}").format(
                target.identifier, sql.Identifier(column), change
            )
        )


def with_equalities(connection: Connection, target: TargetTable) -> TargetTable:
    """Return the target, ready to find rows by key. In a table of ours only a column whose type is not
    PostgreSQL's own has to be asked about; a user's may have any."""
    key = [column for column in target.delivery.table.columns if column.name in target.key]
    if target.ours and all(column.type.base.oid < FIRST_USER_OID for column in key):
        return target
    rows = connection.execute(
        _EQUALITIES, (list(target.key), target.name.schema, target.name.name)
    ).fetchall()
    return replace(target, equalities=tuple((name, schema, operator) for name, schema, operator in rows))


def with_traits(connection: Connection, target: TargetTable) -> TargetTable:
    """Do the same, and find out which columns of a user's table cannot be written as others are."""
    target = with_equalities(connection, target)
    if target.ours:
        return target
    rows = connection.execute(
        """
        select a.attname, a.attgenerated <> ''
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped
          and (a.attgenerated <> '' or a.attidentity = 'a')
        """,
        (target.name.schema, target.name.name),
    ).fetchall()
    return replace(
        target,
        computed=frozenset(name for name, generated in rows if generated and name in target.columns),
        fixed=frozenset(name for name, generated in rows if not generated and name in target.columns),
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


def check(connection: Connection, target: TargetTable) -> None:
    """Raise unless a table which is there takes what the source delivers, and its owner is trusted."""
    _check_fit(target)
    guard(connection, replace(target, ours=False))
    existing = columns_of(connection, target.name)
    wanted = [*target.columns, *defaults(target)]
    missing = [name for name in wanted if name not in existing]
    if missing:
        raise TargetUnfit(
            f"the table at the destination has no column {listed(missing)}",
            target=target.name,
            remedy="Add what is missing (alter table … add column …), or drop the table and let Penstock "
            "create it; then `penstock retry CONFIG TABLE`",
        )
    needed = [name for name, needed in existing.items() if needed and name not in wanted]
    if needed:
        raise TargetUnfit(
            f"the column {listed(needed)} at the destination must have a value, and the source has none",
            target=target.name,
            remedy="Give it a default or let it be null, then `penstock retry CONFIG TABLE`",
        )


def check_kind(connection: Connection, target: TargetTable) -> None:
    """Raise if a table of ours has versions of rows where single rows are to be, or the other way round: it
    would lose them, or has no place for them."""
    has_versions = {START, END, DELETED} <= columns_of(connection, target.name).keys() - set(target.columns)
    if has_versions == target.history:
        return
    what = "versions of rows, which would be lost" if has_versions else "rows without their versions"
    raise TargetUnfit(
        f"the table at the destination has {what}, and is to be of the kind {target.delivery.kind}",
        target=target.name,
        remedy="Give it another `target` as well, or rename or drop the table at the destination; then "
        "`penstock retry CONFIG TABLE`",
    )


def missing(target: TargetTable) -> TargetUnfit:
    """Return the error that there is no table, and none is to be made."""
    return TargetUnfit(
        "the table does not exist at the destination",
        target=target.name,
        remedy="Create it (create table …), or set `create_tables: true`; then `penstock retry CONFIG TABLE`",
    )


def _check_fit(target: TargetTable) -> None:
    taken = [name for name in defaults(target) if name in target.columns]
    if taken:
        raise TargetUnfit(
            f"the source's table has a column {listed(taken)}, which Penstock adds itself",
            target=target.name,
            remedy="Leave the column out (`drop`), or choose another `source_column` or `kind`",
        )
    if target.history and not target.key:
        raise TargetUnfit(
            "the versions of a row are told apart by its key, and the table has none",
            target=target.name,
            remedy="Give the table a primary key, or deliver it as `kind: clone` or `append`",
        )


def listed(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def make_like(connection: Connection, target: TargetTable, model: TargetTable) -> None:
    """Make a table like one of the user's, with its constraints, so that rows are refused early."""
    connection.execute(
        sql.SQL("create table {} (like {} including defaults including constraints)").format(
            target.identifier, model.identifier
        )
    )
    for name in columns_of(connection, target.name):
        if name not in target.columns and name not in defaults(target):  # `like` leaves out what fills it
            connection.execute(
                sql.SQL("alter table {} alter {} drop not null").format(
                    target.identifier, sql.Identifier(name)
                )
            )

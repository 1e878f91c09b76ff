"""`schema.yml`: what a full copy is a copy of, as the catalog says under the copy's own snapshot.

Of a column that is not delivered, or that a rule computes, the source's description stays away, and with it
whatever depends on the column: an index may have values of it in its condition, a check may list them.

`types` has what the columns' types consist of, as far as PostgreSQL does not bring them, each after those
that it is made of: whoever creates them in this order can create the table in an empty database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import yaml

from penstock.destinations.protocol import Delivery
from penstock.model import Column, Lsn
from penstock.postgres.catalog import Constraint, Index, Table, TableColumn
from penstock.postgres.connection import Connection

_MODIFIERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_TEXTS = re.compile(r"^(character|bit)\b")


def document(connection: Connection, table: Table, delivery: Delivery, rows: int, lsn: Lsn) -> bytes:
    """Return `schema.yml` of the delivered columns; of one that a rule computes only the type."""
    table = shown(connection, table, delivery)
    by_name = {column.name: column for column in table.columns}
    described = {
        "table": {"schema": table.name.schema, "name": table.name.name, "row_count": rows},
        "columns": [
            _column(by_name[column.name], table)
            if column.name in by_name
            else {"name": column.name, "type": _computed_type(connection, column)}
            for column in delivery.table.columns
        ],
        "types": types(connection, table),
        "indexes": [_index(index) for index in table.indexes],
        "constraints": [
            {"name": constraint.name, "type": kind, "columns": list(constraint.columns), **_more(constraint)}
            for kind, constraints in _constraints(table)
            for constraint in constraints
        ],
        "metadata": {
            "exported_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "snapshot_lsn": str(lsn),
            "key": list(delivery.key),
        },
    }
    text: str = yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def shown(connection: Connection, table: Table, delivery: Delivery) -> Table:
    """Return the table without what depends on a column whose values do not leave as they are."""
    names = set(delivery.table.column_names) - delivery.computed
    hidden = [column.number for column in table.columns if column.name not in names]
    dependent = set(connection.execute(_DEPENDENT, {"table": table.id, "hidden": hidden}).fetchall())

    def clear(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
        return tuple(
            constraint for constraint in constraints if ("constraint", constraint.name) not in dependent
        )

    return replace(
        table,
        columns=tuple(
            replace(column, generated=None) if ("column", column.name) in dependent else column
            for column in table.columns
            if column.name in names
        ),
        primary_key=next(iter(clear([table.primary_key] if table.primary_key else [])), None),
        unique=clear(table.unique),
        foreign_keys=clear(table.foreign_keys),
        checks=clear(table.checks),
        indexes=tuple(index for index in table.indexes if ("index", index.name) not in dependent),
    )


# An index of a constraint depends on that alone, so the index's columns are looked at as well. An expression
# over the whole row (a `Var` with number 0) depends on the table, as others do that name no column.
_DEPENDENT = """
    with uses (class, object, part) as (
        select d.classid, d.objid, d.objsubid from pg_depend d
        where d.refclassid = 'pg_class'::regclass and d.refobjid = %(table)s
          and d.refobjsubid = any(%(hidden)s::int[])
    )
    select 'index', c.relname
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
    where i.indrelid = %(table)s and cardinality(%(hidden)s::int[]) > 0
      and (i.indkey::int2[]::int[] && %(hidden)s::int[]
           or concat(i.indexprs::text, i.indpred::text) ~ ':varattno 0\\M'
           or ('pg_class'::regclass, i.indexrelid) in (select class, object from uses))
    union all
    select 'constraint', c.conname
    from pg_constraint c
    where c.conrelid = %(table)s and cardinality(%(hidden)s::int[]) > 0
      and (c.conkey::int[] && %(hidden)s::int[]
           or c.conbin::text ~ ':varattno 0\\M'
           or ('pg_constraint'::regclass, c.oid) in (select class, object from uses))
    union all
    select 'column', a.attname
    from pg_attribute a
    join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = %(table)s
      and (('pg_attrdef'::regclass, d.oid, 0) in (select class, object, part from uses)
           or ('pg_class'::regclass, a.attrelid, a.attnum::int) in (select class, object, part from uses))
"""


def _computed_type(connection: Connection, column: Column) -> str:
    """PostgreSQL's own type that a computed column has; of another one nothing is described: it is text."""
    row = connection.execute(
        "select format_type(oid, %s) from pg_type"
        " where oid = %s and typnamespace = 'pg_catalog'::regnamespace",
        (column.type.modifier, column.type.oid),
    ).fetchone()
    return str(row[0]) if row else "text"


def _column(column: TableColumn, table: Table) -> dict[str, Any]:
    key = table.primary_key.columns if table.primary_key else ()
    unique = any(constraint.columns == (column.name,) for constraint in table.unique)
    entry: dict[str, Any] = {"name": column.name, "type": column.type}
    base = column.domain_of or column.type
    if match := _MODIFIERS.search(base):
        if _TEXTS.match(base):
            entry["length"] = int(match[1])
        else:
            entry["precision"] = int(match[1])
            if match[2] is not None:
                entry["scale"] = int(match[2])
    entry["nullable"] = column.nullable
    optional = {
        "primary_key": column.name in key,
        "unique": unique,
        "default": column.default,
        "identity": column.identity,
        "generated": column.generated,
        "domain_of": column.domain_of,
        "values": list(column.labels),
        "collation": column.collation,
    }
    return entry | {name: value for name, value in optional.items() if value}


def _index(index: Index) -> dict[str, Any]:
    return {
        "name": index.name,
        "columns": list(index.columns),
        "unique": index.unique,
        "definition": index.definition,
    }


def _constraints(table: Table) -> list[tuple[str, tuple[Constraint, ...]]]:
    return [
        ("primary_key", (table.primary_key,) if table.primary_key else ()),
        ("unique", table.unique),
        ("foreign_key", table.foreign_keys),
        ("check", table.checks),
    ]


def _more(constraint: Constraint) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if constraint.references is not None:
        entry = {"references": str(constraint.references), "referenced_columns": list(constraint.referenced)}
    return entry | {"definition": constraint.definition}


def types(connection: Connection, table: Table) -> list[dict[str, Any]]:
    """Return the types of a table's columns, and those they are made of, but for PostgreSQL's own. Names are
    as in the columns' `type`."""
    rows = connection.execute(_TYPES, ([column.type_oid for column in table.columns],)).fetchall()
    return [
        {
            "name": name,
            "schema": schema,
            "kind": kind,
            **{key: value for key, value in detail.items() if value},
        }
        for name, schema, kind, detail in rows
    ]


_TYPES = """
    with recursive collations (oid, name) as (
        select l.oid, format('%%I.%%I', n.nspname, l.collname)
        from pg_collation l join pg_namespace n on n.oid = l.collnamespace
    ), used (oid, depth) as (
        select unnest(%s::oid[]), 0
        union
        select below.oid, used.depth + 1
        from used
        join pg_type t on t.oid = used.oid
        cross join lateral (
            select t.typelem where t.typcategory = 'A' and t.typtype <> 'd'
            union all
            select t.typbasetype where t.typtype = 'd'
            union all
            select a.atttypid from pg_attribute a
            where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
            union all
            select r.rngsubtype from pg_range r where r.rngtypid = t.oid
            union all
            select r.rngtypid from pg_range r where r.rngmultitypid = t.oid
        ) below (oid)
    )
    select format_type(t.oid, null), n.nspname,
           case when x.extname is not null then 'extension'
                else case t.typtype when 'e' then 'enum' when 'd' then 'domain' when 'c' then 'composite'
                                    when 'r' then 'range' else 'base' end end,
           case when x.extname is not null then jsonb_build_object('extension', x.extname)
                else case t.typtype
                    when 'e' then jsonb_build_object('values', (
                        select jsonb_agg(e.enumlabel order by e.enumsortorder)
                        from pg_enum e where e.enumtypid = t.oid))
                    when 'd' then jsonb_build_object(
                        'type', format_type(t.typbasetype, t.typtypmod),
                        'not_null', t.typnotnull,
                        'default', t.typdefault,
                        'collation', own.name,
                        'checks', (
                            select jsonb_agg(jsonb_build_object(
                                       'name', c.conname, 'definition', pg_get_constraintdef(c.oid))
                                   order by c.conname)
                            from pg_constraint c where c.contypid = t.oid and c.contype = 'c'))
                    when 'c' then jsonb_build_object('attributes', (
                        select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                                   'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                                   'collation', named.name))
                               order by a.attnum)
                        from pg_attribute a
                        join pg_type at on at.oid = a.atttypid
                        left join collations named
                          on named.oid = a.attcollation and a.attcollation <> at.typcollation
                        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped))
                    when 'r' then (
                        select jsonb_build_object(
                                   'subtype', format_type(r.rngsubtype, null),
                                   'multirange', m.typname,
                                   'collation', ranged.name)
                        from pg_range r
                        join pg_type m on m.oid = r.rngmultitypid
                        join pg_type s on s.oid = r.rngsubtype
                        left join collations ranged
                          on ranged.oid = r.rngcollation and r.rngcollation <> s.typcollation
                        where r.rngtypid = t.oid)
                    else '{}' end end
    from (select oid, max(depth) as depth from used group by oid) found
    join pg_type t on t.oid = found.oid
    join pg_namespace n on n.oid = t.typnamespace
    left join pg_type base on base.oid = t.typbasetype
    left join collations own on own.oid = t.typcollation and t.typcollation <> base.typcollation
    left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
    left join pg_extension x on x.oid = d.refobjid
    where n.nspname not in ('pg_catalog', 'information_schema')
      and t.typtype <> 'm' and (t.typtype = 'd' or t.typcategory <> 'A')
    order by found.depth desc, n.nspname, t.typname
"""

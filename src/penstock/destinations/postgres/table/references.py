"""Foreign keys at the destination that act: they delete or change rows of other tables with those of a table.

A role that may set session_replication_role writes without them. For another they are at work as for any
writer; what the source deletes, they may follow. But rows that the source still has must not go: because a
table is emptied or copied anew, or because a row is deleted before others have come to reference another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from psycopg import sql

from penstock.destinations.postgres.table.target_table import TargetTable, both
from penstock.model import TableId, TableName
from penstock.model.errors import RowsReferenced
from penstock.postgres.connection import Connection

# `parts`: what a row and its reference are compared by.
_ACTING = """
    select n.nspname, c.relname, f.conrelid = f.confrelid, f.confdeltype = 'c',
           has_table_privilege(c.oid, 'select') and not row_security_active(c.oid),
           array(select array[p.attname::text, s.nspname::text, o.oprname::text, a.attname::text]
                 from unnest(f.confkey, f.conkey, f.conpfeqop) with ordinality k (own, others, equal, place)
                 join pg_attribute p on p.attrelid = f.confrelid and p.attnum = k.own
                 join pg_attribute a on a.attrelid = f.conrelid and a.attnum = k.others
                 join pg_operator o on o.oid = k.equal
                 join pg_namespace s on s.oid = o.oprnamespace
                 order by k.place) as parts
    from pg_constraint f
    join pg_class c on c.oid = f.conrelid
    join pg_namespace n on n.oid = c.relnamespace
    join pg_class t on t.oid = f.confrelid
    join pg_namespace m on m.oid = t.relnamespace
    where f.contype = 'f' and f.confdeltype in ('c', 'n', 'd') and f.conparentid = 0
      and m.nspname = %s and t.relname = %s
"""

_REFERENCES = """
    with named (oid, name) as (
        select c.oid, t.name from unnest(%s::text[], %s::text[], %s::text[]) t (schema, relname, name)
        join pg_namespace n on n.nspname = t.schema
        join pg_class c on c.relnamespace = n.oid and c.relname = t.relname
    )
    select child.name, parent.name
    from pg_constraint f
    join named child on child.oid = f.conrelid
    join named parent on parent.oid = f.confrelid
    where f.contype = 'f' and f.conrelid <> f.confrelid
"""


class _Acting(NamedTuple):
    """A foreign key that references the table."""

    schema: str
    name: str
    is_its_own: bool
    """Whether it is one of the table itself."""
    deletes: bool
    readable: bool
    parts: list[list[str]]

    @property
    def child(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def matches(self, one: str, child: str) -> sql.Composable:
        """Return the condition that a row of the child references one of the table."""
        return both(
            sql.SQL("{}.{} operator({}.{}) {}.{}").format(
                sql.Identifier(one),
                sql.Identifier(own),
                sql.Identifier(schema),
                sql.SQL(operator),
                sql.Identifier(child),
                sql.Identifier(others),
            )
            for own, schema, operator, others in self.parts
        )


def parents_first(connection: Connection, targets: Mapping[TableId, TableName]) -> list[TableId]:
    """Return the tables in such an order that each comes after those that it references."""
    places = {str(target): id for id, target in targets.items()}
    names = [(target.schema, target.name, str(target)) for target in targets.values()]
    found = connection.execute(_REFERENCES, [list(part) for part in zip(*names, strict=True)] or [[]] * 3)
    above: dict[TableId, set[TableId]] = {id: set() for id in targets}
    for child, parent in found.fetchall():
        above[places[child]].add(places[parent])
    try:
        return list(TopologicalSorter(above).static_order())
    except CycleError:
        return list(targets)


def refuse_if_children(connection: Connection, target: TargetTable) -> None:
    """Raise if rows of other tables reference the table's rows, or we may not see whether they do. Where the
    source emptied those as well, they are empty the next time."""
    for key in _acting(connection, target):
        referencing = both(sql.SQL("{} is not null").format(sql.Identifier(part[3])) for part in key.parts)
        child = sql.SQL("select from {} where {} limit 1").format(key.child, referencing)
        if not key.is_its_own and (not key.readable or _is_any(connection, child)):
            raise _referenced("it was emptied at the source", key, target)


def refuse_if_referenced(
    connection: Connection, target: TargetTable, gone: sql.Composable, *, by_ours: bool
) -> None:
    """Raise if rows of other tables that reference rows `t` which are gone would be deleted with them.
    `by_ours`: rows of tables that Penstock delivers; what they reference is changed there by itself."""
    for key in _acting(connection, target):
        if key.is_its_own or (by_ours and not (key.deletes and _is_ours(connection, key))):
            continue
        referencing = sql.SQL("select from {} c join {} t on {} where {} limit 1").format(
            key.child, target.identifier, key.matches("t", "c"), gone
        )
        if not key.readable or _is_any(connection, referencing):
            raise _referenced("rows of it are gone at the source", key, target)


def refuse_if_it_references(connection: Connection, target: TargetTable, gone: sql.Composable) -> None:
    """Raise if rows of the table itself that stay would be deleted with rows `t` that are gone."""
    for key in _acting(connection, target):
        rows = sql.SQL(
            "select from {0} t where not ({1}) "
            "and exists (select from (select * from {0} t where {1}) g where {2}) limit 1"
        ).format(target.identifier, gone, key.matches("g", "t"))
        if key.is_its_own and key.deletes and _is_any(connection, rows):
            raise _referenced("rows of it are gone at the source", key, target)


def _acting(connection: Connection, target: TargetTable) -> list[_Acting]:
    found = connection.execute(_ACTING, (target.name.schema, target.name.name))
    return [_Acting(*row) for row in found.fetchall()]


def _is_any(connection: Connection, rows: sql.Composed) -> bool:
    return connection.execute(rows).fetchone() is not None


def _is_ours(connection: Connection, key: _Acting) -> bool:
    name = str(TableName(key.schema, key.name))
    return connection.execute("select from penstock.tables where target = %s", (name,)).fetchone() is not None


def _referenced(why: str, key: _Acting, target: TargetTable) -> RowsReferenced:
    return RowsReferenced(
        f"{why}, and a foreign key of {TableName(key.schema, key.name)} at the destination would delete or "
        "change the rows there that reference it",
        target=target.name,
    )

"""What the source's catalog says of its tables.

A statement each, for all tables at once. `matching` has every table that the configuration's globs choose,
`captured` those of them that logical replication can follow: unlogged and foreign tables have no changes in
the WAL, and a partition comes with the table that it is part of. What a pipeline looks at while it runs is in
`outline.py`.

Whoever owns a table may lock it or drop it while we look. To tell sizes, and expressions that name columns,
takes a lock: `matching` does without those of tables that are locked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg

from penstock.config import TablesConfig
from penstock.model import ReplicaIdentity, TableId, TableName
from penstock.postgres.connection import Connection
from penstock.postgres.identity import IS_DEFERRABLE, is_identity

DEPTH = 64
"""Of domains on domains: what is below that many is not looked at."""

UNTOLD = "…"
"""In the place of an expression that cannot be had without waiting for a lock."""


class TableKind(StrEnum):
    ORDINARY = "r"
    PARTITIONED = "p"
    FOREIGN = "f"


@dataclass(frozen=True, slots=True)
class TableColumn:
    number: int
    """`attnum`: it stays with the column through renames, and leaves gaps where columns were dropped."""
    name: str
    type: str
    """As one would declare it: `numeric(10,2)`, `character varying(20)[]`."""
    type_oid: int
    modifier: int
    domain_of: str | None
    """The base type, if the type is a domain (on at most `DEPTH` others)."""
    labels: tuple[str, ...]
    """The values of an enum, in order; also where it is under a domain or in an array."""
    nullable: bool
    default: str | None
    generated: str | None
    """The expression of a generated column."""
    stored: bool
    """Whether a generated column is stored; a virtual one is never in the WAL."""
    identity: str | None
    """`always` or `by default`"""
    collation: str | None
    """Where it is not the type's own."""


@dataclass(frozen=True, slots=True)
class Constraint:
    name: str
    columns: tuple[str, ...]
    definition: str
    references: TableName | None = None
    """Of a foreign key: the other table, and its columns."""
    referenced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    columns: tuple[str, ...]
    """The key's columns; an expression has no name here."""
    definition: str
    unique: bool
    primary: bool
    valid: bool
    replica_identity: bool


@dataclass(frozen=True, slots=True)
class Table:
    id: TableId
    name: TableName
    kind: TableKind
    unlogged: bool
    owner: str
    identity: ReplicaIdentity
    identified: bool
    """Whether an update or delete tells which row it was, in every partition."""
    deferrable: bool
    """Whether it has a primary key that does not count for that."""
    ancestors: tuple[TableName, ...]
    """The partitioned tables that it is a part of, the nearest first."""
    row_security: bool
    row_security_forced: bool
    row_security_applies: bool
    """Whether it hides rows from the role that asks."""
    estimated_rows: int | None
    """None if it was never analysed."""
    bytes: int
    """On disk, with TOAST and all partitions, without indexes; 0 while it is locked."""
    columns: tuple[TableColumn, ...] = ()
    primary_key: Constraint | None = None
    unique: tuple[Constraint, ...] = ()
    foreign_keys: tuple[Constraint, ...] = ()
    checks: tuple[Constraint, ...] = ()
    indexes: tuple[Index, ...] = ()

    @property
    def root(self) -> TableName | None:
        return self.ancestors[-1] if self.ancestors else None

    @property
    def logged(self) -> bool:
        """Whether its changes are in the WAL at all."""
        return self.kind is not TableKind.FOREIGN and not self.unlogged

    @property
    def identity_index(self) -> Index | None:
        """The index of which the replica identity is made, if there is one."""
        if self.identity is ReplicaIdentity.DEFAULT:
            return next((index for index in self.indexes if index.primary), None)
        return next((index for index in self.indexes if index.replica_identity), None)


def captured(matched: list[Table]) -> list[Table]:
    names = {table.name for table in matched}
    return [table for table in matched if table.logged and names.isdisjoint(table.ancestors)]


def matching(connection: Connection, selection: TablesConfig) -> list[Table]:
    """Return every chosen table, whether or not it can be followed, with all its details; of one that is
    locked, or where tables come and go too fast, without expressions and sizes."""
    for _ in range(3):
        oids = _chosen(connection, selection)
        try:
            with _hardly_waiting(connection):
                return detailed(connection, oids, shut={row[0] for row in connection.execute(_LOCKED)})
        except psycopg.Error as error:
            if not is_passing(error):
                raise
    return detailed(connection, oids, shut=oids)


def detailed(connection: Connection, oids: list[int], shut: Collection[int] = ()) -> list[Table]:
    """Return those of the tables that exist; of those that are `shut` without what takes a lock."""
    size = sizes(connection, oids)
    tables = [_table(row, size.get(row[0], 0)) for row in connection.execute(_TABLES.encode(), (oids,))]
    columns = _by_table(connection, _COLUMNS, oids, shut)
    constraints = _by_table(connection, _CONSTRAINTS, oids, shut)
    indexes = _by_table(connection, _INDEXES, oids, shut)
    return [_detailed(t, columns[t.id], constraints[t.id], indexes[t.id]) for t in tables]


def sizes(connection: Connection, oids: Collection[int]) -> dict[int, int]:
    """Return the tables' sizes by oid; a table or partition that is locked counts 0, without waiting."""
    for _ in range(3 if oids else 0):
        try:
            with _hardly_waiting(connection):
                return dict(connection.execute(_SIZES, (list(oids),)).fetchall())
        except psycopg.errors.LockNotAvailable:
            continue  # locked since we looked for locks
    return {}


def empty(connection: Connection, oids: Collection[int]) -> set[int]:
    """Return those of the tables that have not a single block, as far as that is seen without waiting."""
    for _ in range(3 if oids else 0):
        try:
            with _hardly_waiting(connection):
                return {oid for (oid,) in connection.execute(_EMPTY, (list(oids),))}
        except psycopg.errors.LockNotAvailable:
            continue
    return set()


def is_passing(error: psycopg.Error) -> bool:
    """Whether a look at the catalog failed for a table that was dropped or locked meanwhile."""
    return error.sqlstate in ("XX000", "42P01", "55P03")


@contextmanager
def _hardly_waiting(connection: Connection) -> Iterator[None]:
    """A part of a transaction in which a lock that is not free is an error almost at once."""
    with connection.transaction():
        before = connection.execute("select current_setting('lock_timeout')").fetchone()
        assert before is not None
        connection.execute("select set_config('lock_timeout', '100ms', true)")
        yield
        connection.execute("select set_config('lock_timeout', %s, true)", before)


def _chosen(connection: Connection, selection: TablesConfig) -> list[int]:
    rows = connection.execute(_NAMES).fetchall()
    names, above = {row[0]: TableName(row[1], row[2]) for row in rows}, {row[0]: row[3] for row in rows}
    return [id for id in names if selection.matches(names[id], (names[p] for p in above[id] if p in names))]


def _by_table(
    connection: Connection, statement: str, oids: list[int], shut: Collection[int]
) -> dict[int, list[tuple[Any, ...]]]:
    rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for table, *row in connection.execute(
        statement.encode(), {"tables": oids, "shut": list(shut), "untold": UNTOLD, "depth": DEPTH}
    ):
        rows[table].append(tuple(row))
    return rows


def _table(row: tuple[Any, ...], size: int) -> Table:
    oid, schema, name, kind, unlogged, owner, identity, identified, ancestors, security, rows, deferrable = (
        row
    )
    return Table(
        id=TableId(oid),
        name=TableName(schema, name),
        kind=TableKind(kind),
        unlogged=unlogged,
        owner=owner,
        identity=ReplicaIdentity(identity),
        identified=identified,
        deferrable=deferrable,
        ancestors=tuple(TableName(*ancestor) for ancestor in ancestors or ()),
        row_security=security[0],
        row_security_forced=security[1],
        row_security_applies=security[2],
        estimated_rows=None if rows is None or rows < 0 else rows,
        bytes=size,
    )


def _detailed(
    table: Table,
    columns: list[tuple[Any, ...]],
    constraints: list[tuple[Any, ...]],
    indexes: list[tuple[Any, ...]],
) -> Table:
    kinds: dict[str, list[Constraint]] = defaultdict(list)
    for kind, name, own, definition, schema, other, others in constraints:
        references = TableName(schema, other) if kind == "f" else None
        kinds[kind].append(Constraint(name, tuple(own), definition, references, tuple(others)))
    return replace(
        table,
        columns=tuple(TableColumn(*_frozen(row)) for row in columns),
        primary_key=kinds["p"][0] if kinds["p"] else None,
        unique=tuple(kinds["u"]),
        foreign_keys=tuple(kinds["f"]),
        checks=tuple(kinds["c"]),
        indexes=tuple(Index(*_frozen(row)) for row in indexes),
    )


def _frozen(row: tuple[Any, ...]) -> Iterator[Any]:
    return (tuple(value) if isinstance(value, list) else value for value in row)


_NAMES = """
    select c.oid, n.nspname, c.relname, array(select relid::oid from pg_partition_ancestors(c.oid))
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't'
"""

LEAVES = """(
    with recursive tree (oid) as (
        select c.oid
        union all
        select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid
        where c.relkind = 'p' and not i.inhdetachpending
    )
    select oid from tree
)"""
"""Of the table `c`, with those between: `pg_partition_tree` would lock them."""

_LOCKED = """
    select l.relation from pg_locks l where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock'
      and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
"""

# A partitioned table has no rows of its own: size, rows and identity are those of its leaves.
_TABLES = """
    select c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence = 'u', pg_get_userbyid(c.relowner),
           c.relreplident::text, coalesce(leaf.identified, true),
           (select array_agg(array[an.nspname, ac.relname] order by a.place)
            from pg_partition_ancestors(c.oid) with ordinality a (oid, place)
            join pg_class ac on ac.oid = a.oid
            join pg_namespace an on an.oid = ac.relnamespace
            where a.oid <> c.oid),
           array[c.relrowsecurity, c.relforcerowsecurity, row_security_active(c.oid)],
           leaf.rows, coalesce(leaf.deferrable, false)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    cross join lateral (
        select bool_and(l.relreplident = 'f' or exists (
                   select from pg_index i
                   where i.indrelid = l.oid and {is_identity})) as identified,
               bool_or(exists (select from pg_index i where i.indrelid = l.oid and {is_deferrable}))
                   as deferrable,
               sum(greatest(l.reltuples, 0))::int8 - case when bool_and(l.reltuples < 0) then 1 else 0 end
                   as rows
        from pg_class l
        where l.oid in {leaves} and (l.relkind = 'r' or c.relkind <> 'p')
    ) leaf
    where c.oid = any(%s)
    order by n.nspname, c.relname
""".replace("{leaves}", LEAVES).replace("{is_identity}", is_identity("l"))
_TABLES = _TABLES.replace("{is_deferrable}", IS_DEFERRABLE)

_SIZES = """
    with locked (oid) as materialized ({locked})
    select c.oid, (select coalesce(sum(pg_table_size(l.oid)), 0)::int8 from pg_class l
                   where l.relkind = 'r' and l.oid in {leaves} and l.oid not in (select oid from locked))
    from pg_class c
    where c.oid = any(%s)
""".replace("{leaves}", LEAVES).replace("{locked}", _LOCKED)

_EMPTY = """
    with locked (oid) as materialized ({locked})
    select c.oid::int8 from pg_class c
    where c.relkind = 'r' and c.oid = any(%s) and c.oid not in (select oid from locked)
      and pg_relation_size(c.oid) = 0
""".replace("{locked}", _LOCKED)

_COLUMNS = """
    select a.attrelid, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod,
           case when t.typtype = 'd' then chain.base end,
           array(select e.enumlabel::text from pg_enum e
                 where e.enumtypid = any(chain.oids) order by e.enumsortorder),
           not (a.attnotnull or chain.not_null),
           case when a.attgenerated = '' then pg_get_expr(d.adbin, 0) end,
           case when a.attgenerated = '' then null
                when a.attrelid = any(%(shut)s) then %(untold)s
                else pg_get_expr(d.adbin, d.adrelid) end,
           a.attgenerated = 's',
           case a.attidentity when 'a' then 'always' when 'd' then 'by default' end,
           case when a.attcollation <> t.typcollation
                then (select format('%%I.%%I', n.nspname, l.collname)
                      from pg_collation l join pg_namespace n on n.oid = l.collnamespace
                      where l.oid = a.attcollation) end
    from pg_attribute a
    join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    cross join lateral (
        -- the type, what its domains stand for, and what its array holds
        with recursive below (oid, modifier, in_array, depth) as (
            select t.oid, a.atttypmod, false, 0
            union all
            select case o.typtype when 'd' then o.typbasetype else o.typelem end,
                   case o.typtype when 'd' then o.typtypmod else below.modifier end,
                   below.in_array or o.typtype <> 'd', below.depth + 1
            from below
            join pg_type o on o.oid = below.oid
            where (o.typtype = 'd' or o.typcategory = 'A') and below.depth < %(depth)s
        )
        select array_agg(b.oid) as oids,
               bool_or(b.typnotnull) filter (where not in_array) as not_null,
               min(format_type(b.oid, modifier)) filter (where not in_array and b.typtype <> 'd') as base
        from below
        join pg_type b on b.oid = below.oid
    ) chain
    where a.attrelid = any(%(tables)s) and a.attnum > 0 and not a.attisdropped
    order by a.attrelid, a.attnum
"""

_CONSTRAINTS = """
    select c.conrelid, c.contype::text, c.conname,
           array(select a.attname::text from unnest(c.conkey) with ordinality k (number, place)
                 join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number order by k.place),
           coalesce(case when c.conrelid <> all(%(shut)s) then pg_get_constraintdef(c.oid) end, %(untold)s),
           n.nspname, f.relname,
           array(select a.attname::text from unnest(c.confkey) with ordinality k (number, place)
                 join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.number order by k.place)
    from pg_constraint c
    left join pg_class f on f.oid = c.confrelid
    left join pg_namespace n on n.oid = f.relnamespace
    where c.conrelid = any(%(tables)s) and c.contype in ('p', 'u', 'f', 'c')
    order by c.conrelid, c.conname
"""

_INDEXES = """
    select i.indrelid, c.relname,
           array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k (number, place)
                 join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
                 where k.place <= i.indnkeyatts order by k.place),
           coalesce(case when i.indrelid <> all(%(shut)s) then pg_get_indexdef(i.indexrelid) end, %(untold)s),
           i.indisunique, i.indisprimary, i.indisvalid, i.indisreplident
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
    where i.indrelid = any(%(tables)s)
    order by i.indrelid, c.relname
"""

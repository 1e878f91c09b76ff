"""The tables of a database in outline: what may change from one moment to the next, and no more.

A pipeline looks at its tables every two seconds, at a server that has other things to do. So this takes three
statements for all tables, without a lock, a size or an expression; trees of partitions are put together here.
What stands for a table's columns and keys is a hash: whoever needs them asks when it has changed.

Some things are told apart by when they were made, so that one which is gone and comes back is another one:
a table's membership in the publication by the oid of its entry there and by the transaction that last wrote
what the publication publishes, a partition by the transaction that attached it and by its file, which
TRUNCATE and everything that rewrites it replace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.config import TablesConfig
from penstock.model import ReplicaIdentity, TableId, TableName
from penstock.model.errors import TableBusy
from penstock.postgres import publication
from penstock.postgres.catalog import TableKind
from penstock.postgres.connection import Connection
from penstock.postgres.identity import IS_DEFERRABLE, is_identity
from penstock.postgres.publication import Publication


@dataclass(frozen=True, slots=True)
class Outline:
    id: TableId
    name: TableName
    kind: TableKind
    unlogged: bool
    identity: ReplicaIdentity
    file: int
    """`relfilenode`"""
    parent: TableId | None
    """The partitioned table that it is a part of."""
    attached: str
    """The transaction that made it so."""
    listed: int | None
    """Its entry in the publication, by name (`pg_publication_rel.oid`)."""
    schema_listed: int | None
    """That of its schema (`pg_publication_namespace.oid`)."""
    listed_columns: frozenset[int] | None = None
    """By number, where it is published with a list of columns."""

    @property
    def logged(self) -> bool:
        """Whether its changes are in the WAL at all."""
        return self.kind is not TableKind.FOREIGN and not self.unlogged


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table is made of, to be compared."""

    columns: int
    identified: bool
    """Whether its own updates and deletes tell which row they mean."""
    deferrable: bool
    """Whether it has a primary key that does not count for that."""
    mark: str
    """Another one when a column or an index changed."""
    key: frozenset[int]
    """The columns of its replica identity's index, by number."""
    key_names: frozenset[str]
    """The same by name, as a partition and what it is part of have them in common."""
    stored: frozenset[int]
    """Its stored generated columns."""
    virtual: bool
    """Whether it has generated columns that are not stored."""


@dataclass(frozen=True, slots=True)
class Outlines:
    """Every table of the database, and the publication that is asked about, at one moment."""

    publication: Publication | None
    tables: Mapping[TableId, Outline]
    parts: Mapping[TableId, list[Outline]]
    types: str
    """Another one when a value of some type of users' prints otherwise than before."""
    version: int
    """The server's."""

    @property
    def sends_stored(self) -> bool:
        """Whether stored generated columns are published, or will be where we make the publication."""
        if self.publication is None:
            return self.version >= 180000
        return self.publication.generated_columns

    def ancestors(self, table: Outline) -> Iterator[Outline]:
        """The partitioned tables that it is a part of, the nearest first."""
        while table.parent is not None and table.parent in self.tables:
            table = self.tables[table.parent]
            yield table

    def leaves(self, table: Outline) -> list[Outline]:
        """Where its rows are: its partitions to the last level, or itself."""
        if table.kind is not TableKind.PARTITIONED:
            return [table]
        return [leaf for part in self.parts.get(table.id, ()) for leaf in self.leaves(part)]

    def captured(self, selection: TablesConfig) -> list[Outline]:
        """Return the chosen tables in the WAL, by name. A partition comes with what it is a part of."""
        chosen = {
            table.id
            for table in self.tables.values()
            if selection.matches(table.name, (above.name for above in self.ancestors(table)))
        }
        return sorted(
            (
                table
                for table in map(self.tables.__getitem__, chosen)
                if table.logged and not any(above.id in chosen for above in self.ancestors(table))
            ),
            key=lambda table: table.name,
        )

    def published(self) -> dict[TableId, frozenset[str]]:
        """What the publication publishes, in effect, each table with its memberships: if none of these is
        among those that it had before, it was not published for a while."""
        if self.publication is None:
            return {}
        own = {table.id: self._memberships(table) for table in self.tables.values()}
        if self.publication.via_partition_root:
            return {
                table.id: own[table.id]
                for table in self.tables.values()
                if own[table.id] and not any(own[above.id] for above in self.ancestors(table))
            }
        effective = {
            table.id: own[table.id] | self._inherited(table, own)
            for table in self.tables.values()
            if table.kind is TableKind.ORDINARY
        }
        return {id: memberships for id, memberships in effective.items() if memberships}

    def _memberships(self, table: Outline) -> frozenset[str]:
        assert self.publication is not None
        implied = table.logged  # an unlogged table is in no schema's publication, nor in one of all tables
        oids = {
            "table": table.listed,
            "schema": table.schema_listed if implied else None,
            "all": self.publication.id if implied and self.publication.all_tables else None,
        }
        written = self.publication.written
        return frozenset(f"{kind} {oid} {written}" for kind, oid in oids.items() if oid is not None)

    def _inherited(self, table: Outline, own: Mapping[TableId, frozenset[str]]) -> frozenset[str]:
        """Return the memberships that a partition has from what it is a part of."""
        path, memberships = table.attached, set[str]()
        for above in self.ancestors(table):
            memberships |= {f"{membership} attached {path}" for membership in own[above.id]}
            path = f"{path}/{above.attached}"
        return frozenset(memberships)

    def partitions(self, table: Outline) -> dict[str, str]:
        """Of a partitioned table: what stands for the rows of each leaf, by oid. Another one when it was
        attached anew, emptied or rewritten."""
        if table.kind is not TableKind.PARTITIONED:
            return {}
        return {str(leaf.id): f"{leaf.file}/{self._path(leaf, table)}" for leaf in self.leaves(table)}

    def _path(self, leaf: Outline, table: Outline) -> str:
        above = [ancestor.attached for ancestor in self.ancestors(leaf)]
        depth = [ancestor.id for ancestor in self.ancestors(leaf)].index(table.id)
        return "/".join([leaf.attached, *above[:depth]])


def look(connection: Connection, name: str, only: TableId | None = None) -> Outlines:
    """Return all tables as of now, and their part in the publication; or one, with those that it is a part
    of and that are part of it."""
    existing = publication.describe(connection, name)
    statement = _TABLES_15 if connection.info.server_version >= 150000 else _TABLES_14
    if only is not None:
        statement += _FAMILY
    values = {"publication": existing.id if existing else None, "table": only}
    rows = connection.execute(statement.encode(), values, binary=True).fetchall()
    tables = {TableId(row[0]): _outline(row) for row in rows}
    if len(tables) < len(rows):  # beside ALTERs servers have shown two rows of pg_class for one table
        raise TableBusy("the catalog has a table twice")
    parts: dict[TableId, list[Outline]] = defaultdict(list)
    for table in tables.values():
        if table.parent is not None:
            parts[table.parent].append(table)
    (types,) = connection.execute(_TYPES).fetchone() or ("",)
    return Outlines(existing, tables, parts, types, connection.info.server_version)


def _outline(row: tuple[Any, ...]) -> Outline:
    id, schema, name, kind, unlogged, identity, file, parent, attached, listed, schema_listed, columns = row
    return Outline(
        TableId(id),
        TableName(schema, name),
        TableKind(kind),
        unlogged,
        ReplicaIdentity(identity),
        file,
        None if parent is None else TableId(parent),
        attached,
        listed,
        schema_listed,
        None if columns is None else frozenset(columns),
    )


def shapes(connection: Connection, tables: Iterable[TableId]) -> dict[TableId, TableShape]:
    """Return the shapes of those of the tables that exist."""
    rows = connection.execute(_SHAPES.encode(), (list(tables),), binary=True)
    return {
        TableId(id): TableShape(
            columns,
            identified,
            deferrable,
            mark,
            frozenset(key or ()),
            frozenset(names),
            frozenset(stored or ()),
            virtual,
        )
        for id, columns, identified, deferrable, mark, key, names, stored, virtual in rows
    }


_TABLES = """
    select c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence = 'u',
           c.relreplident::text, c.relfilenode::int8, i.inhparent::int8, coalesce(i.xmin::text, ''),
           r.oid::int8, {schema_listed}, {listed_columns}
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    left join pg_inherits i on i.inhrelid = c.oid and c.relispartition and not i.inhdetachpending
    left join pg_publication_rel r on r.prrelid = c.oid and r.prpubid = %(publication)s
    {schemas}
    where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't' and c.oid >= 16384
"""
_TABLES_15 = _TABLES.format(
    schema_listed="s.oid::int8",
    listed_columns="r.prattrs::int2[]",
    schemas="left join pg_publication_namespace s on s.pnnspid = n.oid and s.pnpubid = %(publication)s",
)
_TABLES_14 = _TABLES.format(schema_listed="null::int8", listed_columns="null::int2[]", schemas="")
_FAMILY = """
      and c.oid in (
          with recursive above (oid) as (
              select %(table)s::oid union
              select i.inhparent from above join pg_inherits i on i.inhrelid = above.oid
          ), below (oid) as (
              select %(table)s::oid union
              select i.inhrelid from below join pg_inherits i on i.inhparent = below.oid
          )
          select oid from above union select oid from below
      )
"""

_TYPES = """
    select concat((select sum(hash_record_extended(row(e.oid, e.enumlabel), 0)) from pg_enum e), '/',
                  (select sum(hash_record_extended(row(a.attrelid, a.attnum, a.atttypid, a.attisdropped), 0))
                   from pg_class c join pg_attribute a on a.attrelid = c.oid
                   where c.relkind = 'c' and c.oid >= 16384))
"""

# Everything that `pipeline/table_facts.py` reads of columns and indexes is in the mark.
_SHAPES = """
    select c.oid::int8, a.columns, coalesce(i.identified, false), coalesce(i.deferrable, false),
           concat(c.relnatts, '/', a.mark, '/', i.mark), i.key,
           array(select k.attname::text from pg_attribute k
                 where k.attrelid = c.oid and k.attnum = any (i.key)),
           a.stored, coalesce(a.virtual, false)
    from pg_class c
    cross join lateral (
        select count(*) as columns, bool_or(a.attgenerated = 'v') as virtual,
               array_agg(a.attnum) filter (where a.attgenerated = 's') as stored,
               sum(hash_record_extended(row(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated,
                                            a.atthasmissing, a.xmin::text), 0)) as mark
        from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    ) a
    cross join lateral (
        select bool_or({is_identity}) as identified, bool_or({is_deferrable}) as deferrable,
               max((i.indkey::int2[])[0:i.indnkeyatts - 1]) filter (where {is_identity}) as key,
               sum(hash_record_extended(row(i.indexrelid, i.indkey::int2[], i.indnkeyatts, i.indisprimary,
                                            i.indisreplident, i.indisvalid, i.indislive, i.indimmediate),
                                        0)) as mark
        from pg_index i
        where i.indrelid = c.oid
    ) i
    where c.oid = any (%s)
""".replace("{is_identity}", is_identity("c")).replace("{is_deferrable}", IS_DEFERRABLE)

"""What the source's catalog says of the published tables, beyond what the stream tells.

The stream describes columns by name and type. To follow a schema change one must also know which column is
which (`attnum` stays with a column through renames), what rows have in a column that was added
(`attmissingval`), and whether the rows themselves were rewritten, which the stream does not tell at all (the
table's file is another then).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from penstock.capture.schemas import described, schema_of
from penstock.config import SourceConfig
from penstock.model import ZERO, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.postgres import catalog, obstacle, outline, publication
from penstock.postgres.catalog import LEAVES
from penstock.postgres.connection import Connection, connect, explain
from penstock.postgres.outline import Outlines, TableShape
from penstock.postgres.publication import PublishedTable
from penstock.postgres.types import TypeCatalog


@dataclass(frozen=True, slots=True)
class Facts:
    """A published table, as the catalog had it at one moment."""

    schema: TableSchema
    """As the stream would describe it; without a version of its own."""
    primary_key: tuple[str, ...]
    numbers: Mapping[str, int]
    """`attnum` of each published column."""
    highest: int
    """The highest `attnum` that any column ever had: numbers are given in order, and never again."""
    marks: Mapping[int, str]
    """By number: which transaction wrote the catalog's row of a column. The same mark later says that the
    column kept name and type all the while."""
    missing: Mapping[str, Sequence[str]]
    """By column: what rows have that were there before the column was, where that is not NULL. A partitioned
    table's leaves may have several of them."""
    files: Mapping[str, int]
    """`relfilenode` of the table or of each leaf partition, by oid: another after a rewrite."""
    row_filter: str | None
    """What a copy has to leave out; told for one only."""
    bytes: int
    begun: Lsn
    """Where the WAL was before the catalog was read last: a schema that a change before it has is not
    missed."""
    lsn: Lsn
    """Where the WAL was after the catalog had said so first: changes from there up to `begun` are of this
    schema, later ones may belong to another."""
    member: frozenset[str] = frozenset()
    """What makes it published: none of these is the same if it was not for a while."""
    leaves: Mapping[str, str] = field(default_factory=dict)
    """Of a partitioned table: what stands for the rows of each leaf (`Outlines.partitions`)."""
    streamed: frozenset[str] = frozenset()
    """Leaves that were empty when they were first seen as such: all of their rows are in the stream."""
    types: Mapping[str, str] = field(default_factory=dict)
    """How values of users' types print: the label of each value of an enum by its oid, the types of each
    composite's fields by the composite's oid."""
    mark: Mark | None = None
    """Its outline: while that is the same, so is the rest."""

    @property
    def id(self) -> TableId:
        return self.schema.id

    def detail(self) -> dict[str, Any]:
        """Return what to remember of the table, as JSON, to compare it with later."""
        return {
            "numbers": dict(self.numbers),
            "highest": self.highest,
            "marks": {str(number): mark for number, mark in self.marks.items()},
            "files": dict(self.files),
            "primary_key": list(self.primary_key),
            "member": sorted(self.member),
            "leaves": dict(self.leaves),
            "types": dict(self.types),
            "lsn": str(self.lsn),
        }


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything in a table's outline that the facts of it hang on: while it is the same, so are they."""

    name: TableName
    identity: ReplicaIdentity
    member: frozenset[str]
    files: tuple[tuple[str, int], ...]
    leaves: tuple[tuple[str, str], ...]
    shape: str
    generated: bool
    """Whether generated columns are published."""
    types: str
    """Of all types of users'."""


def marks(seen: Outlines, shapes: Mapping[TableId, TableShape]) -> dict[TableId, Mark]:
    """Return the marks of the published tables that can be followed; `shapes` has theirs, and those of their
    leaves."""
    generated = seen.publication is not None and seen.publication.generated_columns
    return {
        id: Mark(
            name=table.name,
            identity=table.identity,
            member=member,
            files=tuple((str(leaf.id), leaf.file) for leaf in seen.leaves(table)),
            leaves=tuple(seen.partitions(table).items()),
            shape=shapes[id].mark,
            generated=generated,
            types=seen.types,
        )
        for id, member in seen.published().items()
        for table in [seen.tables[id]]
        if id in shapes and obstacle.gap(seen, table, shapes) is None
    }


@contextmanager
def one_moment(connection: Connection) -> Iterator[None]:
    """Run all queries inside the block as of the same moment."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        yield


def gather(connection: Connection, name: str, table: TableId) -> Facts | None:
    """Return the facts of a table of a publication, with its size; None if it is not published, or what is
    does not tell everything."""
    begun = wal_position(connection)
    with one_moment(connection):
        seen = outline.look(connection, name, only=table)
        parts = [leaf.id for each in seen.tables.values() if each.id == table for leaf in seen.leaves(each)]
        mark = marks(seen, outline.shapes(connection, {table, *parts})).get(table)
        facts = describe(connection, name, {table: mark} if mark is not None else {}, filters=True)
    if table not in facts:
        return None
    size = catalog.sizes(connection, [table])
    return replace(facts[table], bytes=size.get(table, 0), begun=begun, lsn=wal_position(connection))


def describe(
    connection: Connection, name: str, marks: Mapping[TableId, Mark], *, filters: bool = False
) -> dict[TableId, Facts]:
    """Return the facts of these tables of a publication, without sizes, and row filters only for who asks for
    them: they wait for locked tables. Call it in the `one_moment` that the marks are of."""
    if not marks:
        return {}
    published = publication.tables(connection, name, marks.keys(), filters=filters)
    conditions = {table.table: table.row_filter for table in published}
    relations = described(connection, published)
    rows = {row[0]: row[1:] for row in connection.execute(_FACTS, (list(marks),))}
    types = TypeCatalog(lambda: connection)
    schemas = [schema_of(relation, 0, types) for relation in relations]
    return {
        schema.id: _facts(schema, rows[schema.id], conditions.get(schema.name), marks[schema.id])
        for schema in schemas
        if schema.id in marks
    }


def _facts(schema: TableSchema, row: tuple[Any, ...], row_filter: str | None, mark: Mark) -> Facts:
    primary_key, numbers, missing, highest, marks, types = row
    names = set(schema.column_names)
    return Facts(
        schema=schema,
        primary_key=tuple(primary_key) if names.issuperset(primary_key) else (),
        numbers={name: number for name, number in numbers.items() if name in names},
        highest=highest,
        marks={number: marks[str(number)] for name, number in numbers.items() if name in names},
        missing={name: value for name, value in (missing or {}).items() if name in names},
        files=dict(mark.files),
        row_filter=row_filter,
        bytes=0,
        begun=ZERO,
        lsn=ZERO,
        member=mark.member,
        leaves=dict(mark.leaves),
        types=types or {},
        mark=mark,
    )


_FACTS = """
select c.oid,
       coalesce((select array_agg(a.attname::text order by k.place)
                   from pg_index i
                   cross join lateral unnest(i.indkey) with ordinality k (number, place)
                   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
                  where i.indrelid = c.oid and i.indisprimary and i.indimmediate
                    and k.place <= i.indnkeyatts), '{}'),
       (select jsonb_object_agg(attname, attnum) from pg_attribute
         where attrelid = c.oid and attnum > 0 and not attisdropped),
       (select jsonb_object_agg(attname, texts) from (
            select a.attname, jsonb_agg(distinct (a.attmissingval::text::text[])[1]) texts
              from pg_class l join pg_attribute a on a.attrelid = l.oid
             where l.relkind = 'r' and l.oid in {leaves}
               and a.attnum > 0 and not a.attisdropped and a.atthasmissing
             group by a.attname) m),
       c.relnatts,
       (select jsonb_object_agg(attnum, xmin::text) from pg_attribute
         where attrelid = c.oid and attnum > 0 and not attisdropped),
       (with recursive reached (oid) as (
            select a.atttypid from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid >= 16384
             union
            select part.oid from reached
              join pg_type t on t.oid = reached.oid
              left join pg_range r on t.oid in (r.rngtypid, r.rngmultitypid)
             cross join lateral (
                 select unnest(array[t.typelem, t.typbasetype, r.rngsubtype])
                 union all
                 select a.atttypid from pg_attribute a
                  where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) part (oid)
             where part.oid >= 16384)
        select jsonb_object_agg(printed.oid, printed.text) from (
            select e.oid, e.enumlabel::text from pg_enum e join reached on e.enumtypid = reached.oid
             union all
            select t.oid, (select string_agg(a.atttypid::text, ' ' order by a.attnum) from pg_attribute a
                            where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
              from pg_type t join reached using (oid)
             where t.typrelid <> 0) printed (oid, text))
  from pg_class c where c.oid = any (%s)
""".replace("{leaves}", LEAVES)


def foreseen(source: SourceConfig) -> list[TableSchema]:
    """Return the tables that will be captured, as far as is known before anything is made at the source."""
    try:
        with connect(source.conninfo()) as connection:
            relations = described(connection, _to_be_published(connection, source))
            types = TypeCatalog(lambda: connection)
            return [schema_of(relation, 0, types) for relation in relations]
    except psycopg.Error as error:
        raise explain(error) from None


def _to_be_published(connection: Connection, source: SourceConfig) -> list[PublishedTable]:
    seen = outline.look(connection, source.publication_name)
    existing = seen.publication
    if existing is None or (
        source.replication.create_publication and existing.ours and not existing.all_tables
    ):
        captured = {table.id: table.name for table in seen.captured(source.tables)}
        generated = connection.info.server_version >= 180000
        rows = connection.execute(_COLUMNS, (generated, list(captured))).fetchall()
        return [PublishedTable(captured[id], tuple(columns), None) for id, columns in rows]
    published = publication.tables(connection, source.publication_name)
    return [table for table in published if not source.tables.is_ours(table.table)]


_COLUMNS = """
select a.attrelid::int8, array_agg(a.attname::text order by a.attnum)
  from pg_attribute a
 where (a.attgenerated = '' or (a.attgenerated = 's' and %s))
   and a.attrelid = any (%s) and a.attnum > 0 and not a.attisdropped
 group by 1
"""


def wal_position(connection: Connection) -> Lsn:
    row = connection.execute(
        """select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                       else pg_current_wal_insert_lsn() end::text"""
    ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])

"""What the source's catalog says of the published tables, beyond what the stream tells.

The stream describes columns by name and type. To follow a schema change one must also know which column is
which (`attnum` stays with a column through renames), what rows have in a column that was added
(`attmissingval`), and whether the rows themselves were rewritten, which the stream does not tell at all (the
table's file is another then).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.capture.schemas import described, schema_of
from penstock.config import SourceConfig
from penstock.model import Lsn, TableId, TableSchema
from penstock.postgres import catalog, publication
from penstock.postgres.catalog import LEAVES
from penstock.postgres.connection import Connection, connect, explain
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
    missing: Mapping[str, str]
    """By column: what rows have that were there before the column was, where that is not NULL."""
    files: Mapping[str, int]
    """`relfilenode` of the table or of each leaf partition, by oid: another after a rewrite."""
    row_filter: str | None
    bytes: int
    lsn: Lsn
    """Where the WAL was afterwards: changes from there on may belong to another schema."""

    @property
    def id(self) -> TableId:
        return self.schema.id

    def detail(self) -> dict[str, Any]:
        """What to remember of the table, as JSON: to be compared with later."""
        return {
            "numbers": dict(self.numbers),
            "files": dict(self.files),
            "primary_key": list(self.primary_key),
        }


_FACTS = """
select c.oid,
       coalesce((select array_agg(a.attname::text order by k.place)
                   from pg_index i
                   cross join lateral unnest(i.indkey) with ordinality k (number, place)
                   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
                  where i.indrelid = c.oid and i.indisprimary and i.indimmediate), '{}'),
       (select jsonb_object_agg(attname, attnum) from pg_attribute
         where attrelid = c.oid and attnum > 0 and not attisdropped),
       (select jsonb_object_agg(attname, (attmissingval::text::text[])[1]) from pg_attribute
         where attrelid = c.oid and attnum > 0 and not attisdropped and atthasmissing),
       (select jsonb_object_agg(l.oid, pg_relation_filenode(l.oid)) from pg_class l
         where l.relkind = 'r' and l.oid in {leaves})
  from pg_class c where c.oid = any (%s)
""".replace("{leaves}", LEAVES)


def gather(
    connection: Connection,
    name: str,
    only: Collection[TableId] | None = None,
    unsized: Collection[TableId] = (),
) -> dict[TableId, Facts]:
    """The facts of every table of a publication, or of those asked for, as of one moment.

    To tell a table's size takes a lock on it: `unsized` ones go without, and so do those that are locked.
    """
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        published = publication.tables(connection, name, only)
        relations = described(connection, published)
        filters = {table.table: table.row_filter for table in published}
        tables = [relation.table_id for relation in relations]
        rows = {row[0]: row[1:] for row in connection.execute(_FACTS, (tables,))}
        types = TypeCatalog(lambda: connection)
        schemas = [schema_of(relation, 0, types) for relation in relations]
    size = catalog.sizes(connection, [table for table in tables if table not in unsized])
    lsn = wal_position(connection)
    return {
        schema.id: _facts(schema, (*rows[schema.id], size.get(schema.id, 0)), filters.get(schema.name), lsn)
        for schema in schemas
    }


def _facts(schema: TableSchema, row: tuple[Any, ...], row_filter: str | None, lsn: Lsn) -> Facts:
    primary_key, numbers, missing, files, size = row
    names = set(schema.column_names)
    return Facts(
        schema=schema,
        primary_key=tuple(primary_key) if names.issuperset(primary_key) else (),
        numbers={name: number for name, number in numbers.items() if name in names},
        missing={name: value for name, value in (missing or {}).items() if name in names},
        files=files or {},
        row_filter=row_filter,
        bytes=size,
        lsn=lsn,
    )


def foreseen(source: SourceConfig) -> list[TableSchema]:
    """The tables that will be captured, as far as can be told before anything is made at the source."""
    try:
        with connect(source.conninfo()) as connection:
            relations = described(connection, _to_be_published(connection, source))
            types = TypeCatalog(lambda: connection)
            return [schema_of(relation, 0, types) for relation in relations]
    except psycopg.Error as error:
        raise explain(error) from None


def _to_be_published(connection: Connection, source: SourceConfig) -> list[PublishedTable]:
    found = publication.describe(connection, source.publication_name)
    if found is None or (source.replication.create_publication and found.ours and not found.all_tables):
        generated = connection.info.server_version >= 180000
        return [
            PublishedTable(
                table.name,
                tuple(c.name for c in table.columns if not c.generated or (c.stored and generated)),
                None,
            )
            for table in catalog.captured(catalog.outlined(connection, source.tables))
        ]
    published = publication.tables(connection, source.publication_name)
    return [table for table in published if not source.tables.is_ours(table.table)]


def wal_position(connection: Connection) -> Lsn:
    row = connection.execute(
        """select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                       else pg_current_wal_insert_lsn() end::text"""
    ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])

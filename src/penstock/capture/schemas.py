"""Which version of a table's schema a relation message describes.

PostgreSQL describes a table on every new connection and after every change to it. The version grows only
when the description differs from the last one in the spool, so versions are the same after a restart.

A new spool learns the published tables from the catalog, so that a reader can ask for a table before
anything has happened to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from penstock.capture.messages import RelationColumn, RelationMessage
from penstock.model import Column, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.errors import TableBusy
from penstock.postgres import publication
from penstock.postgres.connection import Connection
from penstock.postgres.identity import is_identity
from penstock.postgres.publication import PublishedTable
from penstock.postgres.types import TypeCatalog
from penstock.spool.writer import SpoolWriter


class SpoolSchemas:
    """Resolves relation messages against what the spool knows, and teaches it what is new."""

    def __init__(self, writer: SpoolWriter, types: TypeCatalog) -> None:
        self._writer = writer
        self._types = types
        self._newest = {table: schema for (table, _), schema in sorted(writer.manifest.schemas().items())}

    def resolve(self, relation: RelationMessage, xid: int = 0) -> TableSchema:
        """Return the schema that the message describes, for rows of transaction `xid`; 0: for the catalog."""
        newest = self._newest.get(TableId(relation.table_id))
        describes = newest is not None and _describes(relation, newest)
        if newest is not None and describes and not newest.has_unknown_types:
            return newest
        schema = schema_of(relation, newest.version + 1 if newest else 1, self._types, xid)
        if newest is not None and describes and schema.columns == newest.columns:
            return newest
        self._newest[schema.id] = schema
        self._writer.learn(schema)
        return schema


def schema_of(relation: RelationMessage, version: int, types: TypeCatalog, xid: int = 0) -> TableSchema:
    return TableSchema(
        id=TableId(relation.table_id),
        version=version,
        name=TableName(relation.schema, relation.name),
        identity=ReplicaIdentity(relation.identity),
        columns=tuple(
            Column(column.name, types.resolve(column.type_oid, column.modifier, xid), column.key)
            for column in relation.columns
        ),
    )


def _describes(relation: RelationMessage, schema: TableSchema) -> bool:
    return (
        TableName(relation.schema, relation.name) == schema.name
        and relation.identity == schema.identity
        and [(c.name, c.type_oid, c.modifier, c.key) for c in relation.columns]
        == [(c.name, c.type.oid, c.type.modifier, c.key) for c in schema.columns]
    )


_COLUMNS = """
select c.oid, n.nspname, c.relname, c.relreplident::text, a.attname, a.atttypid, a.atttypmod,
       c.relreplident = 'f' or exists (
           select from unnest(i.indkey::int2[]) with ordinality k (number, place)
            where k.number = a.attnum and k.place <= i.indnkeyatts)
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_index i on i.indrelid = c.oid
        and {is_identity}
 where (n.nspname, c.relname) in (select * from unnest(%s::text[], %s::text[]))
 order by c.oid, a.attnum
""".replace("{is_identity}", is_identity("c"))


def published(connection: Connection, name: str) -> list[RelationMessage]:
    """Return the tables of a publication, as the stream would describe them now."""
    return described(connection, publication.tables(connection, name))


def described(connection: Connection, published: Iterable[PublishedTable]) -> list[RelationMessage]:
    tables = {table.table: table.columns for table in published}
    rows = connection.execute(
        _COLUMNS.encode(), ([table.schema for table in tables], [table.name for table in tables])
    ).fetchall()
    relations = []
    for (table_id, schema, table, identity), columns in groupby(rows, itemgetter(0, 1, 2, 3)):
        listed = tables[TableName(schema, table)]
        kept = tuple(RelationColumn(*column[4:]) for column in columns if column[4] in listed)
        if len({column.name for column in kept}) < len(kept):
            # Beside ALTERs servers have shown two rows of pg_class for one table.
            raise TableBusy("the catalog has the table twice", table=TableName(schema, table))
        relations.append(RelationMessage(table_id, schema, table, identity, kept))
    return relations

"""Which version of a table's schema a relation message describes.

PostgreSQL describes a table on every new connection and after every change to it. The version grows only
when the description differs from the last one in the spool, so versions are the same after a restart.
"""

from __future__ import annotations

from penstock.capture.messages import RelationMessage
from penstock.model import Column, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.postgres.types import TypeCatalog
from penstock.spool.writer import SpoolWriter


class SpoolSchemas:
    """Resolves relation messages against what the spool knows, and teaches it what is new."""

    def __init__(self, writer: SpoolWriter, types: TypeCatalog) -> None:
        self._writer = writer
        self._types = types
        self._newest = {table: schema for (table, _), schema in sorted(writer.manifest.schemas().items())}

    def resolve(self, relation: RelationMessage, lsn: Lsn) -> TableSchema:  # noqa: ARG002
        known = self._newest.get(TableId(relation.table_id))
        if known is not None and _describes(relation, known):
            return known
        schema = TableSchema(
            id=TableId(relation.table_id),
            version=known.version + 1 if known else 1,
            name=TableName(relation.schema, relation.name),
            identity=ReplicaIdentity(relation.identity),
            columns=tuple(
                Column(column.name, self._types.resolve(column.type_oid, column.modifier), column.key)
                for column in relation.columns
            ),
        )
        self._newest[schema.id] = schema
        self._writer.learn(schema)
        return schema


def _describes(relation: RelationMessage, schema: TableSchema) -> bool:
    return (
        TableName(relation.schema, relation.name) == schema.name
        and relation.identity == schema.identity
        and [(c.name, c.type_oid, c.modifier, c.key) for c in relation.columns]
        == [(c.name, c.type.oid, c.type.modifier, c.key) for c in schema.columns]
    )

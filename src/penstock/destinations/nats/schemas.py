"""Schemas of tables in the bucket, for consumers to look up, each with a version that grows.

The bucket itself says which version a table is at: the same schema keeps its version, however often it is put
and by whichever start of the pipeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import psycopg
from nats.errors import Error
from nats.js.errors import KeyNotFoundError, NoKeysError

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.documents import HEADERS, Details, packed, schema_document, unpacked
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.subjects import bucket_key
from penstock.destinations.protocol import Delivery, TableChanges
from penstock.model import TableId, TableName, nats_names
from penstock.model.errors import MessageTooLarge, PenstockError
from penstock.postgres import catalog
from penstock.postgres.connection import connect

Document = dict[str, Any]
Versions = Mapping[tuple[TableId, int], int]
"""What consumers know a schema as: by table, and its version in the spool."""

_OF_THE_MOMENT = ("timestamp", "version")


class SchemaBucket:
    def __init__(self, link: NatsLink, bucket: str, encoding: Encoding, sources: Mapping[str, str]) -> None:
        """`sources`: how to connect to each, with passwords: not for any output."""
        self._link = link
        self._bucket = bucket
        self._encoding = encoding
        self._sources = sources
        self._put: dict[tuple[TableId, int], int] = {}
        self._keys: dict[TableId, str] = {}
        """Where the schema of each table is, as far as this process has put it."""

    def put(self, changes: TableChanges) -> Versions:
        """Put the table's schema as it is at the end of these changes, if the bucket has another one. Return
        the versions of the schemas that the changes begin."""
        delivery = changes.delivery
        begun = [run.delivery.table.version for run in changes.runs if run.follow]
        latest = self.version(delivery, max(1, len(begun)))
        return {(delivery.id, version): latest - later for later, version in enumerate(reversed(begun))} | {
            (delivery.id, delivery.table.version): latest
        }

    def version(self, delivery: Delivery, steps: int = 1) -> int:
        """Return the version of a schema, which is put into the bucket if that has another one."""
        key = delivery.id, delivery.table.version
        if key not in self._put:
            wanted = schema_document(delivery, _details(self._sources[delivery.source], delivery))
            self._put[key] = self._link.run(self._replaced(delivery.table.name, wanted, steps))
            self._leave(delivery.id, bucket_key(delivery.table.name))
        return self._put[key]

    def forget(self, table: TableId) -> None:
        """Remove the schema of a table that is no longer delivered."""
        self._leave(table, None)
        self._put = {key: version for key, version in self._put.items() if key[0] != table}

    async def has(self, token: str) -> bool:
        """Whether any pipeline has put the schema of a table of this name, as far as the server tells."""
        with contextlib.suppress(Error):
            bucket = await (await self._link.jetstream()).key_value(self._bucket)
            await bucket.get(nats_names.bucket_key(token))
            return True
        return False

    def _leave(self, table: TableId, key: str | None) -> None:
        """Remove the table's schema from where it was before, unless that is another table's by now."""
        before = self._keys.pop(table, None)
        if before not in (None, key):
            self._link.run(self._removed(before, table))
        if key is not None:
            self._keys[table] = key

    async def _removed(self, key: str, table: TableId) -> None:
        bucket = await (await self._link.jetstream()).key_value(self._bucket)
        with contextlib.suppress(KeyNotFoundError, NoKeysError):
            entry = await bucket.get(key)
            if unpacked(entry.value or b"", self._encoding)["relation_id"] == table:
                await bucket.delete(key, last=entry.revision)

    async def _replaced(self, table: TableName, wanted: Document, steps: int) -> int:
        bucket = await (await self._link.jetstream()).key_value(self._bucket)
        key = bucket_key(table)
        try:
            entry = await bucket.get(key)
            before = unpacked(entry.value or b"", self._encoding)
        except (KeyNotFoundError, NoKeysError):
            before = {"version": 0}
        version = int(before["version"])
        if _lasting(before) != _lasting(wanted):
            version += steps
            await bucket.put(key, await self._fitting(table, wanted | {"version": version}))
        return version

    async def _fitting(self, table: TableName, document: Document) -> bytes:
        """Return the document, if need be without defaults, which may be of any length."""
        largest = (await self._link.client()).max_payload - HEADERS
        if len(payload := packed(document, self._encoding)) > largest:
            columns = [column | {"column_default": None} for column in document["columns"]]
            payload = packed(document | {"columns": columns}, self._encoding)
        if len(payload) > largest:
            raise MessageTooLarge(
                f"the schema has {len(payload)} bytes, the server takes {largest}", table=table
            )
        return payload


def _lasting(document: Document) -> Document:
    return {key: value for key, value in document.items() if key not in _OF_THE_MOMENT}


def _details(conninfo: str, delivery: Delivery) -> Details:
    """Return what the source's catalog says of the columns now; nothing if it does not answer."""
    try:
        with connect(conninfo) as connection:
            tables = catalog.detailed(connection, [delivery.id])
    except (PenstockError, psycopg.Error):
        return {}
    return {
        column.name: (column.nullable, column.default)
        for table in tables
        for column in table.columns
        if column.name not in delivery.computed
    }

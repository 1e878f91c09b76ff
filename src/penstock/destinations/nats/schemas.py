"""Schemas of tables in the bucket, for consumers to look up, each with a version that grows.

The bucket itself says which version a table is at: the same schema keeps its version, however often it is put
and by whichever start of the pipeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from nats.errors import Error
from nats.js.errors import KeyNotFoundError, NoKeysError

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.documents import (
    HEADERS,
    Details,
    packed,
    schema_document,
    unpacked,
    without_defaults,
)
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.streams import ask
from penstock.destinations.nats.subjects import bucket_key
from penstock.destinations.protocol import Delivery, TableChanges
from penstock.model import TableId, TableName, nats_names
from penstock.model.errors import MessageTooLarge, PenstockError
from penstock.postgres import catalog
from penstock.postgres.connection import connect

Document = dict[str, Any]

_OF_THE_MOMENT = ("timestamp", "version", "pipeline")


class PublishedSchema(NamedTuple):
    """What consumers are told of a schema, besides what the spool has."""

    version: int
    details: Details


Versions = Mapping[tuple[TableId, int], PublishedSchema]
"""What consumers know a schema as: by table, and its version in the spool."""


class SchemaBucket:
    def __init__(
        self, link: NatsLink, bucket: str, encoding: Encoding, pipeline: str, sources: Mapping[str, str]
    ) -> None:
        """`sources`: how to connect to each, with passwords: not for any output."""
        self._link = link
        self._bucket = bucket
        self._encoding = encoding
        self._pipeline = pipeline
        self._sources = sources
        self._put: dict[tuple[str, TableId, int], PublishedSchema] = {}
        self._keys: dict[tuple[str, TableId], str] = {}
        """Where the schema of each table is, as far as this process knows."""

    def put(self, changes: TableChanges) -> Versions:
        """Put the table's schema as it is at the end of these changes, if the bucket has another one. Return
        what is to be told of the schemas that the changes begin."""
        delivery = changes.delivery
        begun = [run.delivery.table.version for run in changes.runs if run.follow]
        latest = self.published(delivery, max(1, len(begun)))
        return {
            (delivery.id, version): latest._replace(version=latest.version - later)
            for later, version in enumerate(reversed(begun))
        } | {(delivery.id, delivery.table.version): latest}

    def published(self, delivery: Delivery, steps: int = 1) -> PublishedSchema:
        """Return what is told of a schema, which is put into the bucket if that has another one."""
        key = delivery.source, delivery.id, delivery.table.version
        if key not in self._put:
            details = _details(self._sources[delivery.source], [delivery.id])
            self._renew(delivery, details.get(delivery.id), steps)
        return self._put[key]

    def renew(self, source: str, deliveries: Sequence[Delivery]) -> None:
        """Put the schemas of tables whose columns are as known, where the bucket lacks them or the catalog
        says something else of them now. One that does not fit stops its table with its next change."""
        details = _details(self._sources[source], [delivery.id for delivery in deliveries])
        for delivery in deliveries:
            with contextlib.suppress(MessageTooLarge):
                self._renew(delivery, details.get(delivery.id))

    def _renew(self, delivery: Delivery, details: Details | None, steps: int = 1) -> None:
        schema = self._link.run(self._replaced(delivery, details, steps))
        self._put[delivery.source, delivery.id, delivery.table.version] = schema
        self._leave((delivery.source, delivery.id), bucket_key(delivery.table.name))

    def forget(self, source: str, table: TableId) -> None:
        """Remove the schema of a table that is no longer delivered, also where another process put it."""
        if (source, table) not in self._keys:
            self._keys = self._link.run(self._own_keys()) | self._keys
        self._leave((source, table), None)
        self._put = {key: schema for key, schema in self._put.items() if key[:2] != (source, table)}

    async def has(self, token: str) -> bool:
        """Whether any pipeline has put the schema of a table of this name, as far as the server tells."""
        with contextlib.suppress(Error):
            bucket = await (await self._link.jetstream()).key_value(self._bucket)
            await bucket.get(nats_names.bucket_key(token))
            return True
        return False

    def _leave(self, table: tuple[str, TableId], key: str | None) -> None:
        """Remove the table's schema from where it was before, unless that is another table's by now."""
        before = self._keys.pop(table, None)
        if before is not None and before != key:
            self._link.run(self._removed(before, table))
        if key is not None:
            self._keys[table] = key

    async def _own_keys(self) -> dict[tuple[str, TableId], str]:
        """Return where the bucket has tables of this pipeline."""
        place = f"$KV.{self._bucket}."
        state = (await ask(self._link, f"STREAM.INFO.KV_{self._bucket}", {"subjects_filter": f"{place}*"}))[
            "state"
        ]
        keys = {}
        for subject in state.get("subjects") or ():
            key = subject.removeprefix(place)
            with contextlib.suppress(ValueError, KeyError):  # of another pipeline, in another encoding
                _, document = await self._read(key)
                if isinstance(document, dict) and self._is_ours(document):
                    keys[document["source"], TableId(document["relation_id"])] = key
        return keys

    def _is_ours(self, document: Document) -> bool:
        """Whether this pipeline has put it; earlier versions did not say who had."""
        return bool(document.get("pipeline", self._pipeline) == self._pipeline)

    async def _read(self, key: str) -> tuple[int, Document | None]:
        """Return what the bucket has there, and the number of its revision."""
        bucket = await (await self._link.jetstream()).key_value(self._bucket)
        try:
            entry = await bucket.get(key)
        except (KeyNotFoundError, NoKeysError):
            return 0, None
        return entry.revision or 0, unpacked(entry.value or b"", self._encoding)

    async def _removed(self, key: str, table: tuple[str, TableId]) -> None:
        revision, document = await self._read(key)
        if document is not None and (document["source"], document["relation_id"]) == table:
            bucket = await (await self._link.jetstream()).key_value(self._bucket)
            await bucket.delete(key, last=revision)

    async def _replaced(self, delivery: Delivery, details: Details | None, steps: int) -> PublishedSchema:
        """`details`: None where the catalog does not answer; what was known of them stays."""
        key = bucket_key(delivery.table.name)
        _, before = await self._read(key)
        if details is None:
            details = {
                column["name"]: (column["is_nullable"], column["column_default"])
                for column in (before or {}).get("columns", ())
            }
        version = int((before or {}).get("version", 0))
        wanted = schema_document(delivery, details) | {"pipeline": self._pipeline}
        if before is None or _lasting(before) != _lasting(wanted):
            version += steps
            bucket = await (await self._link.jetstream()).key_value(self._bucket)
            await bucket.put(key, await self._fitting(delivery.table.name, wanted | {"version": version}))
        return PublishedSchema(version, details)

    async def _fitting(self, table: TableName, document: Document) -> bytes:
        """Return the document, if need be without defaults, which may be of any length."""
        largest = (await self._link.client()).max_payload - HEADERS
        if len(payload := packed(document, self._encoding)) > largest:
            payload = packed(without_defaults(document), self._encoding)
        if len(payload) > largest:
            raise MessageTooLarge(
                f"the schema has {len(payload)} bytes, the server takes {largest}", table=table
            )
        return payload


def _lasting(document: Document) -> Document:
    return {key: value for key, value in document.items() if key not in _OF_THE_MOMENT}


def _details(conninfo: str, tables: list[TableId]) -> Mapping[TableId, Details]:
    """Return what the source's catalog says of the columns now; nothing if it does not answer."""
    try:
        with connect(conninfo) as connection:
            described = catalog.detailed(connection, [int(table) for table in tables])
    except (PenstockError, psycopg.Error):
        return {}
    return {
        table.id: {column.name: (column.nullable, column.default) for column in table.columns}
        for table in described
    }

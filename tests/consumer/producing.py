"""A source and a pipeline in small: tables in memory, transactions, and what the destination `nats` would
publish of them.

Changes are rendered by the destination's own code. Snapshots are cut as PostgreSQL cuts them: transactions
that are open are not in it, whatever their ids; what is committed is, published or not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgpack
import nats
import pyarrow as pa
import zstandard
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from penstock.changes.encoded import Encoding
from penstock.consumer import ConsumerAccess
from penstock.destinations.nats.change_messages import ChangeMessages
from penstock.destinations.nats.subjects import token
from penstock.destinations.protocol import Delivery
from penstock.embedded.nats import USER, NatsServer
from penstock.model import Column, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.nats_names import bucket_key, dictionary_key
from penstock.spool.segment import SCHEMA, BeforeKind, Op
from tests.changes.encoding import json_value, packed_value
from tests.changes.made import column_type

SOURCE = "shop"
FIRST_XID = (3 << 32) - 30
"""Ids of transactions have 32 bits in changes: they come round soon."""
DATA_TYPES = {
    **{"int4": "integer", "int8": "bigint", "bool": "boolean", "float8": "double precision"},
    "timestamptz": "timestamp with time zone",
}

Values = dict[str, str | None]


@dataclass
class ModelTable:
    schema: TableSchema
    primary_key: tuple[str, ...]
    rows: list[Values] = field(default_factory=list)

    @property
    def token(self) -> str:
        return token(self.schema.name)

    @property
    def delivery(self) -> Delivery:
        return Delivery(SOURCE, self.schema, self.schema.name, primary_key=self.primary_key)

    def document(self) -> dict[str, Any]:
        return {
            **{"table": self.token, "schema": str(self.schema.name), "source": SOURCE},
            **{"relation_id": int(self.schema.id), "version": self.schema.version, "timestamp": 1.5},
            **{"primary_key": list(self.primary_key), "identity": self.schema.identity.value},
            "columns": [
                {
                    **{"name": column.name, "position": place, "is_nullable": True, "column_default": None},
                    "data_type": DATA_TYPES.get(column.type.name, column.type.name),
                    "key": column.key,
                }
                for place, column in enumerate(self.schema.columns, 1)
            ],
        }


def model_table(
    id: int, name: TableName, columns: Mapping[str, str], primary_key: tuple[str, ...] = ("id",)
) -> ModelTable:
    """A table with a key, or without one: then its identity is full."""
    identity = ReplicaIdentity.DEFAULT if primary_key else ReplicaIdentity.FULL
    typed = tuple(
        Column(each, column_type(type), each in primary_key or not primary_key)
        for each, type in columns.items()
    )
    return ModelTable(TableSchema(TableId(id), 1, name, identity, typed), primary_key)


@dataclass
class Transaction:
    xid: int
    changes: list[tuple[ModelTable, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Promise:
    """A snapshot that will be made for a request."""

    snapshot_id: str
    table: str
    message: Msg
    is_given: bool = False


class Producer:
    """Publishes to the streams of one server."""

    def __init__(self, server: NatsServer, encoding: Encoding = Encoding.MESSAGE_PACK) -> None:
        self.encoding = encoding
        self.access = ConsumerAccess((server.url,), USER, server.password, encoding=encoding.value)
        self.tables: dict[str, ModelTable] = {}
        self.outbox: list[tuple[str, bytes]] = []
        """What is committed and not published yet."""
        self.chunk_rows = 3
        self.compressed = False
        self.snapshot_pause = 0.0
        self.answer_pause = 0.0
        self.snapshots = 0
        """How many were asked for."""
        self.forgets = 0
        """So many of the next ones are promised and not made."""
        self._promises: dict[str, Promise] = {}
        """By the id of the request, while the snapshot is to come."""
        self.refusal = ""
        self._next_xid = FIRST_XID
        self._lsn = 0x0FFF_FF00
        self._open: list[Transaction] = []
        self._described: dict[str, tuple[int, dict[str, Any]]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self.client = Client()

    async def __aenter__(self) -> Producer:
        server = self.access.servers[0]
        self.client = await nats.connect(server, user=self.access.user, password=self.access.password)
        manager = self.client.jetstream()
        await manager.add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
        await manager.add_stream(StreamConfig(name="INIT", subjects=["init.>"]))
        self.bucket = await manager.create_key_value(bucket="schemas")
        await self.client.subscribe("snapshot.request.*", cb=self._asked)
        return self

    async def __aexit__(self, *_: object) -> None:
        for answer in self._answers:
            answer.cancel()
        await self.client.close()

    # Tables

    async def add(self, *tables: ModelTable) -> None:
        """Let tables be there, as the pipeline does when it starts."""
        for table in tables:
            self.tables[table.token] = table
            await self._describe(table)

    async def redescribe(self, table: ModelTable, schema: TableSchema) -> None:
        """Alter a table: the message comes before the first change under the new version."""
        if self.tables.get(table.token) is table:
            del self.tables[table.token]
        table.schema = schema
        self.tables[table.token] = table
        await self._describe(table)
        self._say(table, "SCHEMA", table.document())

    def reset(self, table: ModelTable, *, named: bool = True) -> None:
        about = {"table": table.token, "relation_id": int(table.schema.id), "reason": "it came back"}
        self._say(table, "RESET", about | ({"schema": str(table.schema.name)} if named else {}))

    async def _describe(self, table: ModelTable) -> None:
        """Versions are counted by name, and a description that is as before is not put again."""
        version, before = self._described.get(table.token, (0, {}))
        table.schema = replace(table.schema, version=version)
        if table.document() == before:
            return
        table.schema = replace(table.schema, version=version + 1)
        self._described[table.token] = version + 1, table.document()
        await self.bucket.put(bucket_key(table.token), self.encoded(table.document()))

    def _say(self, table: ModelTable, operation: str, document: dict[str, Any]) -> None:
        self._lsn += 8
        subject = f"cdc.{table.token}.{operation.lower()}"
        about = {"operation": operation, "subject": subject, "source": SOURCE, "lsn": self.lsn()}
        self.outbox.append((subject, self.encoded(document | about)))

    # Transactions

    def begin(self) -> Transaction:
        transaction = Transaction(self._next_xid)
        self._next_xid += 1
        self._open.append(transaction)
        return transaction

    def insert(self, at: Transaction, table: ModelTable, row: Values) -> None:
        self._add(at, table, op=Op.INSERT, after=row)

    def update(
        self, at: Transaction, table: ModelTable, before: Values, after: Values, *unchanged: str
    ) -> None:
        """Values of columns that are named `unchanged` are not sent."""
        key = table.primary_key
        moved = any(before[column] != after[column] for column in key) or not key
        self._add(at, table, op=Op.UPDATE, before=before if moved else None, after=after, unchanged=unchanged)

    def delete(self, at: Transaction, table: ModelTable, row: Values) -> None:
        self._add(at, table, op=Op.DELETE, before=row)

    def truncate(self, at: Transaction, table: ModelTable) -> None:
        self._add(at, table, op=Op.TRUNCATE)

    def commit(self, transaction: Transaction) -> None:
        """Make it visible, and queue its messages."""
        self._open.remove(transaction)
        self._lsn += 0x100
        for seq, (table, change) in enumerate(transaction.changes):
            place = {"commit_lsn": self._lsn, "lsn": self._lsn - 8, "seq": seq}
            self._render(table, change | place)
            if change["table_rows"] is not None:
                table.rows[:] = change["table_rows"](table.rows)

    def go_back(self) -> None:
        """Let the source be restored from a backup: positions and ids of transactions come again."""
        self._lsn -= 0x8000
        self._next_xid -= 20

    def _add(
        self,
        at: Transaction,
        table: ModelTable,
        *,
        op: Op,
        before: Values | None = None,
        after: Values | None = None,
        unchanged: tuple[str, ...] = (),
    ) -> None:
        names = table.schema.column_names
        full = not table.primary_key
        old = None
        if before is not None:
            old = [before[name] if full or name in table.primary_key else None for name in names]
        new = None
        if after is not None:
            new = [None if name in unchanged else after[name] for name in names]
        at.changes.append(
            (
                table,
                {
                    **{"table_id": table.schema.id, "schema_version": 1, "op": op},
                    **{"xid": at.xid & 0xFFFFFFFF, "committed_at": datetime.now(UTC)},
                    "before_kind": BeforeKind.NONE
                    if old is None
                    else (BeforeKind.FULL, BeforeKind.KEY)[not full],
                    **{"before": old, "after": [] if op == Op.TRUNCATE else new},
                    "unchanged": [names.index(name) for name in unchanged] or None,
                    "table_rows": lambda rows: _changed(rows, table, op, before, after),
                },
            )
        )

    def _render(self, table: ModelTable, change: dict[str, Any]) -> None:
        fields = {name: change[name] for name in SCHEMA.names}
        batch = pa.RecordBatch.from_pylist([fields], SCHEMA)
        (block,) = ChangeMessages(table.delivery, self.encoding).blocks(batch)
        message = block.message(0)
        operation = Op(change["op"]).name.lower()
        self.outbox.append((f"cdc.{table.token}.{operation}", message))

    # What is published

    async def publish(self, count: int | None = None, *, twice: bool = False) -> None:
        """Publish what is queued, or the first so many messages of it."""
        stream = self.client.jetstream()
        part, self.outbox = (
            self.outbox[:count],
            self.outbox[count if count is not None else len(self.outbox) :],
        )
        for subject, message in part:
            await stream.publish(subject, message)
        for subject, message in part if twice else []:
            await stream.publish(subject, message)

    async def _asked(self, message: Msg) -> None:
        asked = message.subject.split(".")[2]
        error = self.refusal or ("" if asked in self.tables else "there is no such table")
        if error:
            await message.respond(self.encoded({"error": error, "table": asked}))
            return
        task = asyncio.create_task(self._answered(message, asked))
        self._answers.add(task)

    async def _answered(self, message: Msg, asked: str) -> None:
        request_id = _given_id(message.data)
        if promise := self._promises.get(request_id):
            promise.message = message
            if promise.is_given:
                await self._give(promise)
            return
        self.snapshots += 1
        promise = self._promises[request_id] = Promise(f"s{self.snapshots}", asked, message)
        await asyncio.sleep(self.answer_pause)
        await self._give(promise)
        if self.forgets:
            self.forgets -= 1
        elif asked in self.tables:
            await self._snapshot(self.tables[asked], promise.snapshot_id)
        del self._promises[request_id]

    async def _give(self, promise: Promise) -> None:
        promise.is_given = True
        answer = {"snapshot_id": promise.snapshot_id, "table": promise.table, "status": "queued"}
        await promise.message.respond(self.encoded(answer))

    async def _snapshot(self, table: ModelTable, snapshot_id: str) -> None:
        running = sorted(transaction.xid for transaction in self._open)
        document = table.document()
        rows = [self._values(table, row) for row in table.rows]
        meta = {
            **{key: document[key] for key in ("table", "source", "relation_id", "version", "columns")},
            **{"primary_key": document["primary_key"], "snapshot_id": snapshot_id, "lsn": self.lsn()},
            **{"timestamp": datetime.now(UTC).timestamp(), "row_count": len(rows), "xmax": self._next_xid},
            **{"xmin": min([*running, self._next_xid]), "xip": running, "encoding": self.encoding.value},
        }
        stream, size, count = self.client.jetstream(), self.chunk_rows, 0
        await asyncio.sleep(self.snapshot_pause)
        for count, first in enumerate(range(0, len(rows), size), 1):
            about = {"table": table.token, "operation": "snapshot", "snapshot_id": snapshot_id}
            chunk = {"chunk": count - 1, "lsn": meta["lsn"], "data": rows[first : first + size]}
            payload, headers = await self._framed(table.token, self.encoded(about | chunk))
            subject = f"init.snap.{table.token}.{snapshot_id}.{count - 1}"
            await stream.publish(subject, payload, headers=headers)
            await asyncio.sleep(self.snapshot_pause / 10)
        await stream.publish(f"init.meta.{table.token}", self.encoded(meta | {"batch_count": count}))

    async def _framed(self, table: str, payload: bytes) -> tuple[bytes, dict[str, str] | None]:
        if not self.compressed:
            return payload, None
        samples: list[bytes | bytearray | memoryview] = [
            f"row {number} of a dictionary that is trained".encode() * 3 for number in range(500)
        ]
        dictionary = zstandard.train_dictionary(1024, samples, dict_id=40_000)
        await self.bucket.put(dictionary_key(table, 40_000), dictionary.as_bytes())
        frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(payload)
        return frame, {"Content-Encoding": "zstd"}

    def _values(self, table: ModelTable, row: Values) -> dict[str, Any]:
        meaning = json_value if self.encoding is Encoding.JSON else packed_value
        types = {column.name: column.type for column in table.schema.columns}
        return {name: None if text is None else meaning(text, types[name]) for name, text in row.items()}

    def encoded(self, value: Any) -> bytes:
        packed: bytes = json.dumps(value).encode() if self.encoding is Encoding.JSON else msgpack.packb(value)
        return packed

    def lsn(self) -> str:
        return f"{self._lsn >> 32:08X}/{self._lsn & 0xFFFFFFFF:08X}"


def _given_id(request: bytes) -> str:
    """Of a request in JSON or MessagePack."""
    document = json.loads(request) if request.startswith(b"{") else msgpack.unpackb(request)
    return str(document["request_id"])


def _changed(
    rows: list[Values], table: ModelTable, op: Op, before: Values | None, after: Values | None
) -> list[Values]:
    """What PostgreSQL makes of the rows."""
    if op == Op.TRUNCATE:
        return []
    rows = list(rows)
    if op == Op.INSERT:
        assert after is not None
        return [*rows, after]
    named = before if before is not None else after
    assert named is not None
    key = table.primary_key or tuple(named)
    place = next(place for place, row in enumerate(rows) if all(row[name] == named[name] for name in key))
    if op == Op.DELETE:
        del rows[place]
    else:
        assert after is not None
        rows[place] = after
    return rows

"""Snapshots on request: consumers ask, the pipeline makes them while the stream goes on.

`SnapshotDesk` hears requests, answers them, and publishes what the pipeline reads. A request that comes while
there is no connection is not heard: whoever asked with a request notices at once, others ask again. Who gives
a request an id may repeat it to hear whether it is still known, and gets one snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgpack
import structlog
import zstandard
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import NotFoundError

from penstock.changes.encoded import Encoding
from penstock.destinations.nats import documents, streams
from penstock.destinations.nats.answers import Answers, may_be_answered
from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.schemas import SchemaBucket
from penstock.destinations.nats.snapshot_chunks import (
    SnapshotForm,
    SnapshotPart,
    make_part,
    make_partition,
    sample_partition,
    samples,
)
from penstock.destinations.nats.subjects import REQUESTS, SNAPSHOTS, token
from penstock.destinations.protocol import TableCopy, WantedSnapshot
from penstock.destinations.work import SMALL_BYTES, Workers, partition_results
from penstock.model import Lsn, TableName
from penstock.model.errors import PenstockError
from penstock.model.nats_names import dictionary_key
from penstock.model.visibility import Visibility
from penstock.spark.snapshot.fetch import fetch_text

MOST_KNOWN = 1000
"""Requests whose snapshots are not made yet."""
OTHERS_ANSWER = 10.0
"""Seconds in which another pipeline has answered for its table, if it runs."""
LONGEST_REQUEST = 4096
"""Bytes."""
DICTIONARY = 16_384
"""Bytes of one."""


@dataclass(slots=True)
class KnownRequest:
    """A request, until its snapshot is made, refused or forgotten."""

    wanted: WantedSnapshot
    given_id: str | None
    """By whoever asked."""
    reply: str
    """Where the answer goes, if whoever asked waits for one."""
    is_taken: bool = False

    def promise(self) -> dict[str, Any]:
        return {"snapshot_id": self.wanted.id, "table": self.wanted.table, "status": "queued"}


class SnapshotDesk:
    """The `Snapshots` of a NATS destination."""

    def __init__(self, link: NatsLink, options: NatsOptions, schemas: SchemaBucket, workers: Workers) -> None:
        self.at_once = options.snapshots_at_once
        self._link = link
        self._options = options
        self._encoding = Encoding(options.encoding)
        self._schemas = schemas
        self._workers = workers
        self._lock = threading.Lock()
        self._known: dict[str, KnownRequest] = {}
        """By the snapshot's id, the oldest first."""
        self._heard_by: Client | None = None
        self._listening: Future[None] | None = None
        self._deaf = False
        self._answers = Answers(link, self._encoding)
        self._log = structlog.get_logger("penstock.nats")
        self._dictionaries: dict[tuple[str, int, int], bytes | None] = {}

    # Requests

    def asked(self) -> Sequence[WantedSnapshot]:
        """Return the requests that were not taken yet, the oldest first."""
        if self._listening is None or self._listening.done():
            self._listening = self._link.begin(self._listen())  # nobody waits for a server that is away
        if self._link.deaf_to_requests and not self._deaf:
            self._deaf = True
            self._log.warning("requests for snapshots are not heard: the user may not subscribe", to=REQUESTS)
        with self._lock:
            return [request.wanted for request in self._known.values() if not request.is_taken]

    def names(self, request: WantedSnapshot, table: TableName) -> bool:
        return token(table) == request.table

    def take(self, request: WantedSnapshot) -> None:
        """Tell who asked that the snapshot will be made; if that is lost, it is asked for again."""
        with self._lock:
            heard = self._known[request.id]
            heard.is_taken = True
        if heard.reply:
            self._link.begin(self._answers.reply(heard.reply, heard.promise()))

    def refuse(self, request: WantedSnapshot, why: str) -> None:
        heard = self._forgotten(request)
        document = {"error": why, "table": request.table, "snapshot_id": request.id}
        if heard.is_taken:
            self._link.run(self._publish(f"{SNAPSHOTS}.error.{request.table}", document))
        else:
            self._link.begin(self._refuse(heard, document))

    def pass_on(self, request: WantedSnapshot, why: str) -> None:
        heard = self._forgotten(request)
        document = {"error": why, "table": request.table, "snapshot_id": request.id}
        self._link.begin(self._refuse_for_all(heard, document))

    async def _refuse_for_all(self, request: KnownRequest, document: dict[str, Any]) -> None:
        """Of two answers the first counts, and all pipelines of an account hear a request: where another one
        publishes a table of this name, its answer comes first."""
        table = request.wanted.table
        with contextlib.suppress(Error, OSError, PenstockError):
            if await self._schemas.has(table):
                before = await self._newest(table)
                await asyncio.sleep(OTHERS_ANSWER)
                if not request.reply and await self._newest(table) != before:
                    return
        await self._refuse(request, document)

    async def _refuse(self, request: KnownRequest, document: dict[str, Any]) -> None:
        if request.reply:
            await self._answers.reply(request.reply, document)
        else:
            self._answers.tell(request.wanted.table, document)

    async def _newest(self, table: str) -> list[int | None]:
        """Return which messages of the stream are the newest of a table."""
        jetstream, newest = await self._link.jetstream(), list[int | None]()
        for subject in (f"meta.{table}", f"error.{table}", f"snap.{table}.>"):
            try:
                last = await jetstream.get_last_msg(self._options.init_stream, f"{SNAPSHOTS}.{subject}")
                newest.append(last.seq)
            except NotFoundError:
                newest.append(None)
        return newest

    def forget(self, request: WantedSnapshot) -> None:
        self._forgotten(request)

    def _forgotten(self, request: WantedSnapshot) -> KnownRequest:
        with self._lock:
            return self._known.pop(request.id)

    async def _listen(self) -> None:
        with contextlib.suppress(Error, OSError, PenstockError):
            client = await self._link.hearing()
            if client is not self._heard_by:
                await client.subscribe(f"{REQUESTS}.>", cb=self._hear)
                self._heard_by = client

    async def _hear(self, message: Msg) -> None:
        reply = message.reply if may_be_answered(message.reply) else ""
        table = message.subject.removeprefix(f"{REQUESTS}.")
        try:
            answer = self._heard(table, _given_id(message.data, table), reply)
        except ValueError as error:
            answer = {"error": str(error), "table": table[:200]}
            if not reply:
                self._answers.tell(table, answer)
        if answer and reply:
            await self._answers.reply(reply, answer)

    def _heard(self, table: str, given_id: str | None, reply: str) -> dict[str, Any] | None:
        """Return what is to be answered now, if anything."""
        with self._lock:
            for request in self._known.values() if given_id is not None else ():
                if (request.given_id, request.wanted.table) == (given_id, table):
                    request.reply = reply
                    return request.promise() if request.is_taken else None
            if len(self._known) >= MOST_KNOWN:
                raise ValueError(f"{MOST_KNOWN} snapshots are waited for already: ask again later")
            wanted = WantedSnapshot(f"snap-{int(time.time())}-{secrets.token_hex(4)}", table)
            self._known[wanted.id] = KnownRequest(wanted, given_id, reply)
        return None

    async def _publish(self, subject: str, document: dict[str, Any]) -> None:
        jetstream = await self._link.jetstream()
        await jetstream.publish(subject, documents.packed(document, self._encoding), timeout=ANSWERING)

    # Snapshots

    def make(self, request: WantedSnapshot, copy: TableCopy, seen: Visibility, position: Lsn) -> int:
        """Publish the rows, then what there is to know of them. `position`: everything that committed before
        is in it."""
        delivery = copy.delivery
        schema = self._schemas.published(delivery)
        init = self._link.run(streams.info(self._link, self._options.init_stream))
        assert init is not None
        form = SnapshotForm(
            access=self._link.access,
            id=request.id,
            token=request.table,
            table=delivery.table,
            lsn=documents.position_text(position.value - 1),  # what commits at `position` may not be in it
            encoding=self._encoding,
            rows=self._options.snapshot_chunk_rows,
            largest=init.largest,
            dictionary=None,
            compressed=self._options.compression == "zstd",
        )
        if form.compressed:
            form = self._with_dictionary(form, copy, schema.version)
        if copy.rows is not None:
            results = partition_results(copy.rows, partial(make_partition, form))
        else:
            parts = [
                SnapshotPart(form, number, copy.conninfo, copy.snapshot, part)
                for number, part in enumerate(copy.ranges)
            ]
            small = sum(part.bytes for part in copy.ranges) <= SMALL_BYTES
            results = self._workers.results(make_part, parts, here=small)
        copy.rows_read()
        rows = sum(part.rows for part in results)
        about = documents.schema_document(delivery, schema.details, schema.version) | {
            "snapshot_id": request.id,
            "lsn": form.lsn,
            "batch_count": sum(part.chunks for part in results),
            "row_count": rows,
            "xmin": seen.xmin,
            "xmax": seen.xmax,
            "xip": list(seen.running),
            "compression": self._options.compression,
            "encoding": self._options.encoding,
        }
        if len(documents.packed(about, self._encoding)) + documents.HEADERS > init.largest:
            about = documents.without_defaults(about)
        self._link.run(self._publish(f"{SNAPSHOTS}.meta.{request.table}", about))
        self.forget(request)
        return rows

    def _with_dictionary(self, form: SnapshotForm, copy: TableCopy, version: int) -> SnapshotForm:
        """Train a dictionary with the table's first rows, and publish it; none if they are too few."""
        key = form.token, int(form.table.id), version
        if key not in self._dictionaries:
            self._dictionaries[key] = self._trained(form, copy)
        return replace(form, dictionary=self._dictionaries[key])

    def _trained(self, form: SnapshotForm, copy: TableCopy) -> bytes | None:
        if copy.rows is not None:
            parts = partition_results(copy.rows, partial(sample_partition, form), first_only=True)
        else:
            first = copy.ranges[:1]
            columns = form.table.columns
            parts = [samples(form, fetch_text(copy.conninfo, copy.snapshot, part, columns)) for part in first]
        rows: list[bytes | bytearray | memoryview] = [row for part in parts for row in part]
        try:
            trained = zstandard.train_dictionary(DICTIONARY, rows)
        except (zstandard.ZstdError, ValueError):
            return None
        number, data = trained.dict_id(), trained.as_bytes()
        self._link.run(self._put(dictionary_key(form.token, number), data))
        return data

    async def _put(self, key: str, value: bytes) -> None:
        bucket = await (await self._link.jetstream()).key_value(self._options.schema_bucket)
        await bucket.put(key, value)


def _given_id(data: bytes, table: str) -> str | None:
    """Return what whoever asked calls the request. Raises ValueError where it is none."""
    if "." in table or not table:
        raise ValueError("expected a table's name as one token: snapshot.request.{table}")
    if len(data) > LONGEST_REQUEST:
        raise ValueError(f"expected a request of at most {LONGEST_REQUEST} bytes")
    if not data.strip():
        return None
    for read in (json.loads, msgpack.unpackb):
        with contextlib.suppress(ValueError, RecursionError, msgpack.UnpackException):
            document = read(data)
            if isinstance(document, dict):
                given_id = document.get("request_id")
                return given_id if isinstance(given_id, str) else None
    raise ValueError("expected an empty request, or a map in JSON or MessagePack")

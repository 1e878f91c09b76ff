"""Snapshots of a table: asked for, waited for, read chunk by chunk.

Whoever prepares snapshots may be restarted and forget what it was asked. So a request is repeated now and
then, under the same id: it is answered with the snapshot that is being made for it, or, where it was
forgotten, with a new one. Any of those that were promised will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import nats.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue

from penstock.consumer.access import ConsumerAccess
from penstock.consumer.documents import SnapshotInfo
from penstock.consumer.ordered import TRANSIENT, OrderedReader, StreamEntry, stream_facts
from penstock.consumer.payloads import Dictionaries, Payloads
from penstock.model.errors import SnapshotRefused, SnapshotUnanswered

Rows = list[dict[str, Any]]

PATIENCE = 30.0
"""Seconds until the snapshot is asked for again."""
_LOOK = 5.0
_MOST_REQUESTS = 5
"""That nobody answers, one after the other."""
_PAUSE = 0.5
_OUTAGE_LOOKS = 20


class SnapshotReader:
    """Snapshots of one table."""

    def __init__(
        self, client: Client, bucket: KeyValue, access: ConsumerAccess, token: str, name: str | None = None
    ) -> None:
        self._client = client
        self._stream = access.init_stream
        self._payloads = Payloads(access.encoding)
        self._dictionaries = Dictionaries(bucket, token)
        self._token = token
        self._name = name or token

    @asynccontextmanager
    async def taken(
        self, began: Callable[[str], None] = lambda _: None
    ) -> AsyncIterator[tuple[SnapshotInfo, AsyncIterator[Rows]]]:
        """Ask for a snapshot, and give it when it is whole: what it is, and its rows. `began` is told the id
        of one that will be made. Raises SnapshotRefused, SnapshotUnanswered; the rows raise it, too, when
        they are not all there."""
        try:
            before = (await stream_facts(self._client, self._stream)).last
            info = await self._awaited(before, began)
        except TRANSIENT as error:
            raise self._unanswered(f"NATS does not answer ({type(error).__name__})") from None
        chunks = self._chunks(info, before)
        try:
            yield info, chunks
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    async def _awaited(self, before: int, began: Callable[[str], None]) -> SnapshotInfo:
        subjects = [f"init.meta.{self._token}", f"init.error.{self._token}"]
        reader = OrderedReader(self._client, self._stream, subjects, before)
        request = self._payloads.encode({"request_id": uuid4().hex})
        promised: set[str] = set()
        try:
            while True:
                snapshot_id = await self._promise(request, is_first=not promised)
                if snapshot_id not in promised:
                    promised.add(snapshot_id)
                    began(snapshot_id)
                info = await self._answer(reader, promised)
                if info is not None:
                    return info
        finally:
            await reader.close()

    async def _promise(self, request: bytes, is_first: bool) -> str:
        """Ask, or ask again, and return the id of the snapshot that will be made. The first time somebody has
        to be there; later a pipeline that starts again is waited for, a while."""
        for _ in range(_MOST_REQUESTS):
            try:
                message = await self._client.request(
                    f"snapshot.request.{self._token}", request, timeout=PATIENCE
                )
            except nats.errors.TimeoutError:
                continue
            except TRANSIENT as error:
                if is_first and isinstance(error, nats.errors.NoRespondersError):
                    break
                await asyncio.sleep(_LOOK)
                continue
            answer = self._payloads.decode(message.data)
            if "error" in answer:
                raise self._refused(answer["error"])
            return str(answer["snapshot_id"])
        raise self._unanswered("nobody answers to requests for snapshots")

    async def _answer(self, reader: OrderedReader, promised: set[str]) -> SnapshotInfo | None:
        """Return one of the snapshots that were promised, when it is whole; None: ask whether it is still to
        come."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while loop.time() < deadline:
            for entry in await self._batch(reader):
                answer = self._payloads.decode(entry.data)
                if "error" in answer:
                    if answer.get("snapshot_id") in (None, *promised):
                        raise self._refused(answer["error"])
                elif answer["snapshot_id"] in promised:
                    return SnapshotInfo.of(answer, self._name)
        return None

    async def _batch(self, reader: OrderedReader) -> list[StreamEntry]:
        """Return the next messages, across an outage of some seconds."""
        for _ in range(_OUTAGE_LOOKS):
            try:
                return await reader.batch(_LOOK)
            except TRANSIENT:
                await asyncio.sleep(_PAUSE)
        return await reader.batch(_LOOK)

    async def _chunks(self, info: SnapshotInfo, before: int) -> AsyncIterator[Rows]:
        subject = f"init.snap.{self._token}.{info.snapshot_id}.*"
        reader = OrderedReader(self._client, self._stream, [subject], before)
        chunks: set[int] = set()
        rows = 0
        try:
            while len(chunks) < info.batch_count:
                batch = await self._batch(reader)
                if not batch:
                    raise self._unanswered("chunks of a snapshot are missing")
                for entry in batch:
                    payload = await self._dictionaries.opened(entry.data, entry.headers)
                    chunk = self._payloads.decode(payload)
                    if chunk["chunk"] not in chunks:  # a repetition otherwise
                        chunks.add(chunk["chunk"])
                        rows += len(chunk["data"])
                        yield chunk["data"]
        except TRANSIENT as error:
            raise self._unanswered(f"NATS does not answer ({type(error).__name__})") from None
        finally:
            await reader.close()
        if rows != info.row_count:
            raise self._unanswered(f"a snapshot has {rows} rows where {info.row_count} were promised")

    def _refused(self, reason: str) -> SnapshotRefused:
        return SnapshotRefused(f"the pipeline gives no snapshot: {reason}", table=self._token)

    def _unanswered(self, reason: str) -> SnapshotUnanswered:
        return SnapshotUnanswered(reason, table=self._token)

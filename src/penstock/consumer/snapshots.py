"""Snapshots of a table: asked for, waited for, read chunk by chunk.

Whoever prepares snapshots may be restarted and forget what it was asked. So a request is repeated when the
stream of snapshots has stood still for some time, and any answer to any of the requests will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.kv import KeyValue

from penstock.consumer.access import ConsumerAccess
from penstock.consumer.documents import SnapshotInfo
from penstock.consumer.ordered import TRANSIENT, OrderedReader, StreamEntry, stream_facts
from penstock.consumer.payloads import Dictionaries, Payloads
from penstock.model.errors import SnapshotRefused, SnapshotUnanswered

Rows = list[dict[str, Any]]

PATIENCE = 30.0
"""Seconds without anything new in the stream of snapshots, until the snapshot is asked for again."""
_LOOK = 5.0
_LONGEST_QUEUE = 86_400.0
_MOST_REQUESTS = 5
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
        self._requested: set[str] = set()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[tuple[SnapshotInfo, AsyncIterator[Rows]]]:
        """Ask for a snapshot, and give it when it is whole: what it is, and its rows. Raises SnapshotRefused,
        SnapshotUnanswered; the rows raise it, too, when they are not all there."""
        before = (await stream_facts(self._client, self._stream)).last
        info = await self._awaited(before)
        chunks = self._chunks(info, before)
        try:
            yield info, chunks
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    async def _awaited(self, before: int) -> SnapshotInfo:
        subjects = [f"init.meta.{self._token}", f"init.error.{self._token}"]
        reader = OrderedReader(self._client, self._stream, subjects, before)
        patience = PATIENCE
        try:
            for _ in range(_MOST_REQUESTS):
                await self._request()
                info = await self._answer(reader, patience)
                if info is not None:
                    return info
                patience *= 2
        except TRANSIENT as error:
            raise self._unanswered(f"NATS does not answer ({type(error).__name__})") from None
        finally:
            await reader.close()
        raise self._unanswered("a snapshot was asked for and does not come")

    async def _request(self) -> None:
        payload = self._payloads.encode({"request_id": uuid4().hex})
        subject = f"snapshot.request.{self._token}"
        asked = asyncio.create_task(self._client.request(subject, payload, timeout=_LONGEST_QUEUE))
        try:
            await self._until_done(asked)
            answer = self._payloads.decode((await asked).data)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            raise self._unanswered("nobody answers to requests for snapshots") from None
        finally:
            asked.cancel()
        if "error" in answer:
            raise SnapshotRefused(f"the pipeline gives no snapshot: {answer['error']}", table=self._token)
        self._requested.add(answer["snapshot_id"])

    async def _until_done(self, asked: asyncio.Task[Msg]) -> None:
        """Wait for the answer, which may come only when the snapshots of others are made: as long as anything
        is put into their stream."""
        loop = asyncio.get_running_loop()
        last, since = -1, loop.time()
        while not asked.done():
            await asyncio.wait([asked], timeout=_LOOK)
            facts = await stream_facts(self._client, self._stream)
            if facts.last != last:
                last, since = facts.last, loop.time()
            if loop.time() - since > PATIENCE:
                raise nats.errors.TimeoutError

    async def _answer(self, reader: OrderedReader, patience: float) -> SnapshotInfo | None:
        """Return the snapshot, when it is whole; None: nothing happens any more."""
        loop = asyncio.get_running_loop()
        last, since = -1, loop.time()
        while loop.time() - since < patience:
            for entry in await self._batch(reader):
                answer = self._payloads.decode(entry.data)
                if "error" in answer:
                    if answer.get("snapshot_id") in (None, *self._requested):
                        raise SnapshotRefused(
                            f"the pipeline gives no snapshot: {answer['error']}", table=self._token
                        )
                elif answer["snapshot_id"] in self._requested:
                    return SnapshotInfo.of(answer, self._name)
            facts = await stream_facts(self._client, self._stream)
            if facts.last != last:
                last, since = facts.last, loop.time()
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

    def _unanswered(self, reason: str) -> SnapshotUnanswered:
        return SnapshotUnanswered(reason, table=self._token)

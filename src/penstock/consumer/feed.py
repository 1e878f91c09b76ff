"""A NATS destination as its consumers use it: descriptions of tables, snapshots, changes.

    async with Feed.open(ConsumerAccess(("nats://localhost:4222",), user="app", password=…)) as feed:
        async for step in feed.copy_and_follow("users"):
            …

`copy_and_follow` is all that most need: the rows of a table as they were in one snapshot, then every change
that the snapshot does not contain, each once. What it is made of can be used by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import nats.js.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue

from penstock.consumer.access import ConsumerAccess, connect
from penstock.consumer.documents import (
    ROW_OPERATIONS,
    FeedEvent,
    MessageLogged,
    RowChange,
    SeenBy,
    SnapshotInfo,
    TableDescription,
    TableRedescribed,
    TableReset,
    event,
)
from penstock.consumer.ordered import (
    PAUSE,
    TRANSIENT,
    OrderedReader,
    StreamEntry,
    StreamFacts,
    answered,
    stream_facts,
)
from penstock.consumer.payloads import Payloads
from penstock.consumer.snapshots import SnapshotReader
from penstock.model.errors import FeedMissing, FeedUnreachable, FeedUnreadable, PenstockError
from penstock.model.nats_names import bucket_key
from penstock.model.secrets import without_secrets

_WAIT = 30.0
_TRIES = 3
_ELECTING = 10008
"""JetStream has no leader at the moment."""


class FeedBroken(PenstockError):
    """The stream no longer has what comes next: it dropped messages that were not read, or is another one."""

    remedy = "Begin again with snapshots; keep messages longer (the stream's max_age, max_bytes, max_msgs)"


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Some rows of the snapshot."""

    rows: list[dict[str, Any]]


class Feed:
    """An open connection to what one destination publishes."""

    def __init__(self, access: ConsumerAccess, client: Client, bucket: KeyValue) -> None:
        self.access = access
        self.payloads = Payloads(access.encoding)
        self._client = client
        self._bucket = bucket

    @classmethod
    @asynccontextmanager
    async def open(cls, access: ConsumerAccess) -> AsyncIterator[Feed]:
        """Connect; the streams and the bucket must be there. Raises FeedUnreachable, FeedMissing."""
        client = await connect(access)
        try:
            yield cls(access, client, await _bucket(client, access))
        finally:
            await client.close()

    async def facts(self) -> StreamFacts:
        """Return where the stream of changes begins and ends now."""
        return await stream_facts(self._client, self.access.stream)

    async def tables(self) -> dict[str, TableDescription]:
        """Return the newest description of every table, by what it is called in subjects. A table that was
        renamed may have left older ones under its former names."""
        newest: dict[tuple[str, int], TableDescription] = {}
        for table in await self.descriptions():
            other = newest.get(table.relation)
            if other is None or other.timestamp < table.timestamp:
                newest[table.relation] = table
        return {table.token: table for table in newest.values()}

    async def descriptions(self) -> list[TableDescription]:
        """Return all that the bucket has. (The client's own list of keys is empty now and then, where there
        are some: what arrives before it has counted is not waited for.)"""
        bucket, place = self.access.schema_bucket, f"$KV.{self.access.schema_bucket}."
        info = await self._client.jetstream().stream_info(f"KV_{bucket}", subjects_filter=f"{place}*")
        keys = sorted(subject.removeprefix(place) for subject in info.state.subjects or ())
        described = [await self._described(key) for key in keys]
        return [table for table in described if table is not None]

    async def table(self, token: str) -> TableDescription | None:
        """Return the newest description of a table, if it has one."""
        return await self._described(bucket_key(token))

    def snapshots(self, token: str, name: str | None = None) -> SnapshotReader:
        """Return what asks for a snapshot of a table and reads it."""
        return SnapshotReader(self._client, self._bucket, self.access, token, name)

    async def entries(
        self, after: int, created: str | None = None, wait: float = _WAIT
    ) -> AsyncGenerator[Sequence[StreamEntry]]:
        """Yield the messages of all tables after a sequence, in batches; an empty one when there was none for
        some seconds. Raises FeedBroken when messages are missing, or when it is not the stream that was
        created then."""
        created = created or (await self.facts()).created
        reader = OrderedReader(self._client, self.access.stream, [f"{CHANGES}.>"], after)
        try:
            while True:
                try:
                    if reader.is_new:
                        self._check(await self.facts(), created, reader.position)
                    position = reader.position
                    batch = await reader.batch(wait)
                    if not batch:
                        await self._check_silence(created, position)
                    elif (gap := _first_gap(position, batch)) is not None:
                        self._check(await self.facts(), created, gap)
                        await self._check_gap(gap)
                except TRANSIENT:
                    await asyncio.sleep(PAUSE)
                    continue
                yield batch
        finally:
            await reader.close()

    async def changes(self, after: int, tables: Collection[str] = ()) -> AsyncGenerator[FeedEvent]:
        """Yield what happens to some tables, or all, after a sequence of the stream."""
        async with aclosing(self.entries(after)) as batches:
            async for batch in batches:
                for entry in batch:
                    token = table_of(entry.subject)
                    if token is None or (tables and token not in tables):
                        continue
                    what = self.read(entry)
                    if what is not None:
                        yield what

    def read(self, entry: StreamEntry) -> FeedEvent | None:
        """Return what a message of the stream of changes says; None: nothing for consumers."""
        try:
            return event(entry.sequence, self.payloads.decode(entry.data))
        except FeedUnreadable:
            if entry.subject.startswith(POSITIONS):  # Penstock's own, unless a table is called so
                return None
            raise

    async def copy_and_follow(self, token: str) -> AsyncGenerator[SnapshotInfo | SnapshotRows | RowChange]:
        """Yield a table as a `SnapshotInfo`, then all its rows, then every change since. When it cannot be
        followed any more (a reset, other columns, lost messages), it begins with a `SnapshotInfo` again:
        what came before is void."""
        while True:
            after = (await answered(self.facts)).last
            async with self.snapshots(token).taken() as (info, chunks):
                yield info
                async for rows in chunks:
                    yield SnapshotRows(rows)
            try:
                async with aclosing(self._since(info, after)) as changes:
                    async for change in changes:
                        yield change
            except FeedBroken:
                continue

    async def _since(self, info: SnapshotInfo, after: int) -> AsyncGenerator[RowChange]:
        """Yield the changes that a snapshot lacks, until they do not suffice."""
        last, seen = ("", 0), SeenBy(info.visibility, info.visible_until)
        async with aclosing(self.changes(after, (info.table.token,))) as changes:
            async for change in changes:
                if isinstance(change, RowChange):
                    if change.place <= last or seen(change):
                        continue
                    if change.relation != info.table.relation:
                        return
                    last = change.place
                    yield change
                elif not isinstance(change, MessageLogged) and _voids(info, change):
                    return

    def _check(self, facts: StreamFacts, created: str, position: int) -> None:
        if facts.created != created or facts.last < position:
            raise FeedBroken(f"the stream {self.access.stream} is not the one that was followed")
        if facts.first > position + 1:
            raise self._dropped(facts.first, position)

    async def _check_silence(self, created: str, position: int) -> None:
        """Nothing came: is there nothing?"""
        facts = await self.facts()
        self._check(facts, created, position)
        if facts.last > position:
            await self._check_gap(position)

    async def _check_gap(self, position: int) -> None:
        """Look whether what came after a sequence was dropped. Penstock's own messages go one by one, and are
        kept longer than others: only messages of tables say where the stream begins. Limits drop the
        oldest, so if one is left from before the gap, none of those in it was dropped."""
        first = await self._first_of_tables()
        if first is None or first > position + 1:
            raise self._dropped(first, position)

    async def _first_of_tables(self) -> int | None:
        """Return the sequence of the first message in the stream that is of a table."""
        manager, sequences = self._client.jetstream(), []
        for operation in ("insert", "update", "delete", "truncate", "schema", "reset"):
            subject = f"{CHANGES}.*.{operation}"
            try:
                message = await manager.get_msg(self.access.stream, seq=1, subject=subject, next=True)
            except nats.js.errors.NotFoundError:
                continue
            sequences.append(message.seq or 0)
        return min(sequences, default=None)

    def _dropped(self, first: int | None, position: int) -> FeedBroken:
        begins = f"it begins with {first}" if first else "none is left"
        return FeedBroken(
            f"the stream {self.access.stream} has dropped messages that were not read: {begins}, the next "
            f"would have been {position + 1}"
        )

    async def _described(self, key: str) -> TableDescription | None:
        try:
            entry = await self._bucket.get(key, validate_keys=False)
        except nats.js.errors.NotFoundError:
            return None
        return TableDescription.of(self.payloads.decode(entry.value or b""))


CHANGES = "cdc"
POSITIONS = f"{CHANGES}._position."


async def _bucket(client: Client, access: ConsumerAccess) -> KeyValue:
    """Return the bucket, where it and the streams are there. JetStream may be electing a leader."""
    reason = ""
    for _ in range(_TRIES):
        try:
            bucket = await client.jetstream().key_value(access.schema_bucket)
            await stream_facts(client, access.init_stream)
            await stream_facts(client, access.stream)
            return bucket
        except nats.js.errors.BucketNotFoundError:
            raise FeedMissing(f"there is no bucket {access.schema_bucket}") from None
        except TRANSIENT as error:
            reason = without_secrets(str(error)) or type(error).__name__
            is_unavailable = isinstance(error, nats.js.errors.ServiceUnavailableError)
            if is_unavailable and getattr(error, "err_code", None) != _ELECTING:
                raise FeedMissing(
                    "the NATS server has no JetStream for this user", remedy="Enable JetStream"
                ) from None
            refusal = str(client.last_error or "")
            if "permissions violation" in refusal.lower():
                reason = without_secrets(refusal)
                break
        await asyncio.sleep(PAUSE)
    raise FeedUnreachable(
        f"JetStream does not answer: {reason}",
        servers=access.shown,
        remedy="Check that the server runs, and that the user may publish to $JS.API.> and hear _INBOX.>",
    )


def table_of(subject: str) -> str | None:
    """Return which table a message of the stream is of; None: it is of no table."""
    parts = subject.split(".")
    return parts[1] if len(parts) == 3 else None


def is_of_a_row(subject: str) -> bool:
    """Whether a message of a table is one of its rows, or of all of them."""
    return subject.rpartition(".")[2].upper() in ROW_OPERATIONS


def _voids(info: SnapshotInfo, event: TableReset | TableRedescribed) -> bool:
    """Whether a snapshot does not suffice any more after what came since it was asked for."""
    if isinstance(event, TableReset):
        return True
    return event.relation != info.table.relation or event.table.version > info.table.version


def _first_gap(position: int, batch: Sequence[StreamEntry]) -> int | None:
    """Return the sequence after which the first message is missing."""
    if batch[-1].sequence - position == len(batch):
        return None
    for entry in batch:
        if entry.sequence != position + 1:
            return position
        position = entry.sequence
    return None

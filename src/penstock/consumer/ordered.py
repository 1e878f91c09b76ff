"""A stream's messages in their order, from some sequence on, in batches.

The server is asked for so many messages, and holds the request until it has some: no message is pushed at
somebody who is busy. It numbers what it delivers; after a gap in those numbers, or when it is silent though
it promised signs of life, the consumer is made anew from the last sequence that was returned. Consumers are
in the server's memory and gone soon after their reader.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.model.errors import FeedMissing

MOST_MESSAGES = 4000
MOST_BYTES = 66 << 20
"""For one request; more than the largest message that a server can be made to take."""
HEARTBEAT = 2.0
SILENCE = 2.5 * HEARTBEAT
"""Seconds without a sign of life, after which the server has forgotten the consumer: it was restarted."""
EXPIRES = 30.0
GONE_AFTER = 60.0
"""Seconds after which the server forgets the consumer of a reader that is gone."""
CLOSING = 1.0
LINGER = 0.2
"""Seconds that a batch gathers at most."""
TRANSIENT = (nats.errors.Error, OSError, TimeoutError)
"""What a server may answer while it starts, stops or elects."""


PAUSE = 0.5

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    sequence: int
    subject: str
    data: bytes
    headers: dict[str, str] | None
    pending: int
    """How many are there behind it."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as it is now."""

    created: str
    first: int
    last: int


async def stream_facts(client: Client, stream: str) -> StreamFacts:
    """Return where the stream begins and ends. Raises FeedMissing where there is none."""
    _check_connected(client)
    try:
        info = await client.jetstream().stream_info(stream)
    except nats.js.errors.NotFoundError:
        raise FeedMissing(f"there is no stream {stream}") from None
    created = info.created
    assert isinstance(created, datetime)
    if (info.config.max_msgs_per_subject or -1) > 0:
        raise FeedMissing(
            f"the stream {stream} keeps only {info.config.max_msgs_per_subject} messages of each subject: "
            "changes would be lost unseen",
            remedy="Set its max_msgs_per_subject to -1",
        )
    return StreamFacts(created.isoformat(), info.state.first_seq, info.state.last_seq)


async def answered(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Ask until there is an answer, however long the server is away."""
    while True:
        try:
            return await ask()
        except TRANSIENT:
            await asyncio.sleep(PAUSE)


def _check_connected(client: Client) -> None:
    """What is asked while the connection is away may get no answer, long after it is back."""
    if not client.is_connected:
        raise nats.errors.ConnectionReconnectingError


class OrderedReader:
    """Reads from one stream what comes after a sequence."""

    def __init__(self, client: Client, stream: str, subjects: Sequence[str], after: int) -> None:
        self._client = client
        self._stream = stream
        self._subjects = list(subjects)
        self.position = after
        """The sequence of the last message that was returned."""
        self._subscription: Subscription | None = None
        self._consumer = ""
        self._delivered = 0
        self._outstanding = 0
        self._refusals = 0
        self._arrived: deque[Msg] = deque()
        self._sign = asyncio.Event()
        self._last_sign = 0.0

    async def batch(self, wait: float) -> list[StreamEntry]:
        """Return the next messages, as soon as there are some; none after `wait` seconds without."""
        deadline = asyncio.get_running_loop().time() + wait
        while not (entries := await self._gathered(deadline)):
            if asyncio.get_running_loop().time() >= deadline:
                break
        if entries:
            self.position = entries[-1].sequence
        if not self._outstanding and self._subscription is not None:
            await self._request()  # the server works while the caller does
        return entries

    @property
    def is_new(self) -> bool:
        """Whether the next batch begins with a consumer of its own: look at the stream before."""
        return self._subscription is None

    async def close(self) -> None:
        if self._subscription is None or self._client.is_closed:
            return
        await self._leave()
        if self._client.is_connected:
            with suppress(*TRANSIENT):  # the server forgets it by itself
                async with asyncio.timeout(CLOSING):
                    await self._client.jetstream().delete_consumer(self._stream, self._consumer)

    async def _leave(self) -> None:
        """Read no more from this consumer: the next batch makes another."""
        subscription, self._subscription = self._subscription, None
        self._arrived.clear()
        if subscription is not None:
            with suppress(*TRANSIENT):
                await subscription.unsubscribe()

    async def _open(self) -> None:
        _check_connected(self._client)
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.position + 1,
            ack_policy=AckPolicy.NONE,
            filter_subjects=self._subjects,
            inactive_threshold=GONE_AFTER,
            mem_storage=True,
            num_replicas=1,
        )
        info = await self._client.jetstream().add_consumer(self._stream, config)
        self._consumer = info.name
        self._delivered, self._outstanding, self._refusals = 0, 0, 0
        self._arrived = arrived = deque[Msg]()

        async def take(message: Msg) -> None:
            arrived.append(message)
            self._last_sign = asyncio.get_running_loop().time()
            self._sign.set()

        self._subscription = await self._client.subscribe(
            self._client.new_inbox(), cb=take, pending_bytes_limit=4 * MOST_BYTES
        )

    async def _request(self) -> None:
        assert self._subscription is not None
        wanted = {
            "batch": MOST_MESSAGES,
            "max_bytes": MOST_BYTES,
            "expires": int(EXPIRES * 1e9),
            "idle_heartbeat": int(HEARTBEAT * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._outstanding = MOST_MESSAGES
        self._last_sign = asyncio.get_running_loop().time()
        await self._client.publish(subject, json.dumps(wanted).encode(), self._subscription.subject)

    async def _gathered(self, deadline: float) -> list[StreamEntry]:
        """Return what arrives until the deadline, or shortly after the first; none also when the consumer
        has to be made anew."""
        loop = asyncio.get_running_loop()
        entries: list[StreamEntry] = []
        lingers = False
        if self._subscription is None:
            await self._open()
        if not self._outstanding:
            await self._request()
        while len(entries) < MOST_MESSAGES:
            if not self._taken(entries):
                await self._leave()
                break
            if not self._outstanding or (entries and not entries[-1].pending):
                break
            if entries and not lingers:
                deadline, lingers = min(deadline, loop.time() + LINGER), True
            try:
                async with asyncio.timeout_at(min(deadline, self._last_sign + SILENCE)):
                    await self._sign.wait()
            except TimeoutError:
                if not entries and loop.time() >= self._last_sign + SILENCE:
                    await self._leave()
                break
        return entries

    def _taken(self, entries: list[StreamEntry]) -> bool:
        """Move what has arrived to the entries; whether the consumer is as it should be."""
        self._sign.clear()
        while self._arrived and len(entries) < MOST_MESSAGES:
            message = self._arrived.popleft()
            if not message.reply.startswith("$JS.ACK."):
                if not self._is_well(message.headers):
                    return False
                continue
            places = message.reply.split(".")
            sequence, number, pending = (
                (places[5], places[6], places[8]) if len(places) == 9 else (places[7], places[8], places[10])
            )
            if int(number) != self._delivered + 1:
                return False
            self._delivered += 1
            self._outstanding = max(0, self._outstanding - 1)
            self._refusals = 0
            entries.append(
                StreamEntry(int(sequence), message.subject, message.data, message.headers, int(pending))
            )
        return True

    def _is_well(self, headers: dict[str, str] | None) -> bool:
        """Take a status: 100 is a sign of life, 404 and 408 end a request, 409 does for several reasons, of
        which some pass by asking again."""
        status = (headers or {}).get("Status")
        if status == "100":
            return True
        self._outstanding = 0
        self._refusals += status not in ("404", "408")
        return status in ("404", "408") or (status == "409" and self._refusals < 3)

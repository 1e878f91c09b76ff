"""What nats-py is too slow for: many messages at once, straight to its connection, and the few answers.

Two ways, both of the server's own making:
- a fast batch: messages are stored as they come, with an answer for some hundred of them; the first that is
  refused or lost ends it, and nothing behind it is stored: the order is kept (server 2.14 and later);
- atomic batches: all messages of one are stored, or none; several are on their way at once.

Whatever ends a connection ends what is on its way: it is begun anew by whoever wanted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import APIError

from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.model.errors import ConnectionFailed, DestinationUnready, PenstockError

FLOW = 500
"""Messages for which a fast batch asks one answer."""
WINDOW = 20_000
"""Messages of a fast batch that wait for an answer, at most."""
IN_FLIGHT = 16
"""Atomic batches that wait for an answer, at most."""
NAME_BYTES = 9
"""Of the name that one sends under: enough that no other has it, and few, as each message repeats it."""
_END = 3
"""Ends a fast batch without a message: nothing is stored under its subject, which the stream has to take."""


class Sending(ABC):
    """Sends on one connection, and hears its answers on an inbox of its own."""

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self.inbox = self.name = ""

    async def open(self) -> None:
        self._client = await self._link.client()
        prefix = self._client.new_inbox().rpartition(".")[0]
        self.name = secrets.token_urlsafe(NAME_BYTES)
        self.inbox = f"{prefix}.{self.name}"
        self._subscription = await self._client.subscribe(f"{self.inbox}.>", cb=self._heard)
        self._link.listeners.add(self._fail)

    async def close(self) -> None:
        self._link.listeners.discard(self._fail)
        with contextlib.suppress(Error, OSError):  # with the connection it is over in any case
            await self._subscription.unsubscribe()

    async def write(self, frames: bytes) -> None:
        """Put frames on the wire; returns when the connection takes more. A connection that ends meanwhile
        may never say so."""
        self._raise_failure()
        await asyncio.wait_for(self._written(frames), ANSWERING)
        self._raise_failure()

    async def _written(self, frames: bytes) -> None:
        await self._client._flush_pending(force_flush=True)  # what nats-py has to say comes first
        transport = self._client._transport
        if transport is None or self._client.is_closed:
            raise ConnectionFailed("the connection to NATS is gone")
        transport.write(frames)
        await transport.drain()  # type: ignore[no-untyped-call]

    async def wait(self) -> None:
        """Wait until something is heard."""
        self._raise_failure()
        await asyncio.wait_for(self._news.wait(), ANSWERING)
        self._news.clear()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    async def _heard(self, message: Msg) -> None:
        try:
            if not message.data:
                raise DestinationUnready("no stream takes the messages", remedy="Make the stream again")
            answer = json.loads(message.data)
            if "error" in answer:
                raise APIError.from_error(answer["error"])
            self.answered(message.subject, answer)
        except (PenstockError, APIError) as error:
            self._fail(error)
        self._news.set()

    @abstractmethod
    def answered(self, subject: str, answer: dict[str, Any]) -> None:
        """Take an answer that is no error. Raises what it says against what was sent."""


class FastBatch(Sending):
    def __init__(self, link: NatsLink) -> None:
        super().__init__(link)
        self.sent = self._stored = 0
        self._ended = False
        self._last_subject = ""

    async def open(self) -> None:
        await super().open()
        # The last part of an inbox is as good a name for the batch as another; each message repeats it.
        self.reply = f"{self.inbox}.{FLOW}.fail.".encode()

    async def send(self, frames: bytes, count: int, last_subject: str) -> None:
        await self.write(frames)
        self.sent += count
        self._last_subject = last_subject
        while self.sent - self._stored > WINDOW:
            await self.wait()

    async def end(self) -> None:
        """Return when all is stored."""
        if self.sent:
            reply = self.reply.decode()
            await self.write(f"PUB {self._last_subject} {reply}{self.sent + 1}.{_END}.$FI 0\r\n\r\n".encode())
            while not self._ended:
                await self.wait()

    def answered(self, subject: str, answer: dict[str, Any]) -> None:  # noqa: ARG002
        if answer.get("type") == "ack":
            self._stored = max(self._stored, int(answer["seq"]))
        elif "count" in answer:
            self._ended = True
            if answer["count"] != self.sent:
                raise DestinationUnready(f"JetStream has stored {answer['count']} of {self.sent} messages")
        else:
            raise DestinationUnready("a message was lost on its way to JetStream")


@dataclass(frozen=True, slots=True)
class _Awaited:
    subject: str
    messages: int


class AtomicBatches(Sending):
    """Each of them is to be stored behind the one before."""

    def __init__(self, link: NatsLink) -> None:
        super().__init__(link)
        self._awaited: deque[_Awaited] = deque()
        self._number = 0
        self.last_sequence = 0
        """Of the last message of the last batch that was stored."""

    def next_reply(self) -> str:
        self._number += 1
        return f"{self.inbox}.{self._number}"

    async def send(self, frames: bytes, reply: str, messages: int) -> None:
        """Send a batch, whose last message asks for an answer there."""
        while len(self._awaited) >= IN_FLIGHT:
            await self.wait()
        self._awaited.append(_Awaited(reply, messages))
        await self.write(frames)

    async def end(self) -> None:
        while self._awaited:
            await self.wait()

    def answered(self, subject: str, answer: dict[str, Any]) -> None:
        if not self._awaited or self._awaited[0].subject != subject:
            raise DestinationUnready("an answer of JetStream is missing")
        expected = self._awaited.popleft()
        if answer.get("count", 1) != expected.messages:
            raise DestinationUnready(f"JetStream has stored {answer.get('count')} of {expected.messages}")
        self.last_sequence = int(answer["seq"])

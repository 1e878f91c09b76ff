"""What is in a stream, as whoever reads it from its beginning finds it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import msgpack
import nats as nats_client
from nats.errors import TimeoutError as NatsTimedOut
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.embedded.nats import USER, NatsServer


@dataclass(frozen=True, slots=True)
class Read:
    subject: str
    sequence: int
    headers: dict[str, str]
    body: dict[str, Any]


def read_all(
    server: NatsServer, stream: str = "CDC", subject: str = "cdc.>", encoding: str = "msgpack"
) -> list[Read]:
    """Every message of a stream, in its order, Penstock's own positions left out."""
    return asyncio.run(_read_all(server, stream, subject, encoding))


async def _read_all(server: NatsServer, stream: str, subject: str, encoding: str) -> list[Read]:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        jetstream = client.jetstream()
        waiting = await jetstream.pull_subscribe(
            subject,
            stream=stream,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE),
        )
        left = (await waiting.consumer_info()).num_pending or 0
        found: list[Read] = []
        while left > 0:
            try:
                messages = await waiting.fetch(min(left, 1000), timeout=5)
            except NatsTimedOut:  # some that were counted have expired since
                left = min(left, (await waiting.consumer_info()).num_pending or 0)
                continue
            for message in messages:
                left -= 1
                if not message.subject.startswith("cdc._position"):
                    found.append(_read(message, encoding))
        return found
    finally:
        await client.close()


def _read(message: Any, encoding: str) -> Read:
    body = json.loads(message.data) if encoding == "json" else msgpack.unpackb(message.data)
    return Read(message.subject, message.metadata.sequence.stream, message.headers or {}, body)

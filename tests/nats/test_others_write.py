"""Somebody else writes to the stream while groups are on their way: nothing is stored behind a gap."""

from __future__ import annotations

import contextlib

import msgpack
import nats as nats_client
import pytest

from penstock.changes.encoded import Encoding
from penstock.destinations.nats import positions, streams
from penstock.destinations.nats.documents import Form
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.messages import Messages, Place, joined
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.publishing import Way, _Atomically
from penstock.destinations.nats.sending import AtomicBatches
from penstock.embedded.nats import USER, NatsServer
from penstock.model.errors import DestinationUnready
from penstock.model.nats_access import Access
from tests.nats.reading import read_all

GROUP = 10
GROUPS = 5
CHANGES = GROUPS * (GROUP - 1)
SUBJECT = "cdc._position.p.s"


async def write(server: NatsServer, messages: int) -> None:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    for number in range(messages):
        await client.jetstream().publish("cdc.others.insert", str(number).encode())
    await client.close()


def changes() -> Messages:
    """Each in a transaction of its own."""
    return joined(
        [
            Messages.single(msgpack.packb({"n": n}), "cdc.t.insert", str(n), Place(n + 1, 0))
            for n in range(CHANGES)
        ]
    )


@pytest.mark.parametrize("others", [1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP])
@pytest.mark.parametrize("before", range(GROUPS))
def test_what_others_write_is_no_gap(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, before: int, others: int
) -> None:
    """As many messages as a group has: then a later one finds a position where it expects another."""
    access = Access((nats.url,), USER, nats.password)
    link = NatsLink.of(access)
    options = NatsOptions.model_validate(
        {"servers": [nats.url], "user": USER, "password": nats.password, "delivery": "atomic"}
    )
    link.run(streams.ensured(link, options))
    stream = link.run(streams.info(link, options.stream))
    assert stream is not None
    way = Way(access, Form(Encoding.MESSAGE_PACK, "", 1 << 20), GROUP, positions.kept_headers(stream))
    sent, send = [0], AtomicBatches.send

    async def send_between(self: AtomicBatches, frames: bytes, reply: str, messages: int) -> None:
        if sent[0] == before:
            await write(nats, others)
        sent[0] += 1
        await send(self, frames, reply, messages)

    monkeypatch.setattr(AtomicBatches, "send", send_between)

    for _ in range(GROUPS):
        with contextlib.suppress(DestinationUnready):
            position = link.run(positions.read(link, stream, "s", SUBJECT))
            _Atomically(link, way, position, dict).publish(iter([changes()]), lambda _: True)
            break
    link.close()
    assert [message.body["n"] for message in read_all(nats, subject="cdc.t.insert")] == list(range(CHANGES))

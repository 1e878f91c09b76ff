"""A transaction in parts: each message once, wherever it is interrupted, and no part of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import msgpack
import pytest

from penstock.changes.encoded import Encoding
from penstock.destinations.nats import positions, streams
from penstock.destinations.nats.documents import Form
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.messages import Messages, Place
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.publishing import PART_BYTES, Way, _Atomically
from penstock.destinations.nats.sending import AtomicBatches
from penstock.destinations.nats.streams import StreamInfo
from penstock.embedded.nats import USER, NatsServer
from penstock.model.errors import DestinationUnready
from penstock.model.nats_access import Access
from tests.nats.reading import read_all

SUBJECT = "cdc._position.p.s"


class Publisher:
    """Publishes groups of so many messages, from where the stream says."""

    def __init__(self, server: NatsServer) -> None:
        self.access = Access((server.url,), USER, server.password)
        self.link = NatsLink.of(self.access)
        settings = {"servers": [server.url], "user": USER, "password": server.password}
        options = NatsOptions.model_validate(settings | {"delivery": "atomic"})
        self._stream: StreamInfo = self.link.run(streams.ensured(self.link, options))

    def atomically(self, group: int, source: str = "s") -> _Atomically:
        form = Form(Encoding.MESSAGE_PACK, "", 1 << 20)
        way = Way(self.access, form, group, positions.kept_headers(self._stream))
        position = self.link.run(positions.read(self.link, self._stream, source, SUBJECT))
        return _Atomically(self.link, way, position, dict)

    def publish(self, messages: list[Messages]) -> None:
        self.atomically(2).publish(iter(messages), lambda _: True)


@pytest.fixture
def publisher(nats: NatsServer) -> Iterator[Publisher]:
    made = Publisher(nats)
    yield made
    made.link.close()


def message(name: str, place: Place, size: int = 0) -> Messages:
    return Messages.single(msgpack.packb({"n": name, "data": "x" * size}), "cdc.t.insert", name, place)


@pytest.mark.parametrize("sent", range(5))
def test_a_schema_and_the_first_change_under_it_come_once_each(
    nats: NatsServer, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """Also where the connection ends between the two, and another schema is behind the last change."""
    first, second = Place.of_change(200, 0), Place.of_change(200, 1)
    messages = [
        message("schema", first.before),
        message("first", first),
        message("second", second),
        message("next schema", second.behind),
    ]
    left, send = [sent], AtomicBatches.send

    async def fails(self: AtomicBatches, frames: bytes, reply: str, count: int) -> None:
        if not left[0]:
            left[0] = -1
            raise DestinationUnready("the connection is gone")
        left[0] -= 1
        await send(self, frames, reply, count)

    monkeypatch.setattr(AtomicBatches, "send", fails)
    if sent < len(messages):
        with pytest.raises(DestinationUnready):
            publisher.publish(messages)
        with suppress(DestinationUnready):  # what was on its way may arrive just now
            publisher.publish(messages)
    publisher.publish(messages)
    told = [message.body["n"] for message in read_all(nats, subject="cdc.t.insert")]
    assert told == ["schema", "first", "second", "next schema"]


def test_a_position_of_an_earlier_version_is_that_of_a_change(nats: NatsServer, publisher: Publisher) -> None:
    document = {"source": "s", "commit_lsn": "00000000/000000C8", "seq": 1, "complete": False, "copy": ""}

    async def store() -> None:
        await (await publisher.link.jetstream()).publish(SUBJECT, json.dumps(document).encode())

    publisher.link.run(store())
    changes = [message(str(seq), Place.of_change(200, seq)) for seq in range(3)]
    publisher.publish(changes)
    assert [message.body["n"] for message in read_all(nats, subject="cdc.t.insert")] == ["2"]


def test_a_part_of_a_transaction_of_wide_rows_has_a_bounded_size(publisher: Publisher) -> None:
    wide = [message(str(seq), Place.of_change(200, seq), 900_000) for seq in range(40)]
    narrow = [message(str(number), Place.of_change(300 + number, 0)) for number in range(5)]
    held: list[int] = []

    def counted() -> Iterator[Messages]:
        for number, part in enumerate([*wide, *narrow], 1):
            held.append(number)
            yield part

    groups = []
    for group, complete in publisher.atomically(1000)._groups(counted(), lambda _: True):
        groups.append((len(group), complete))
        assert group.size <= PART_BYTES
        assert held[-1] - sum(count for count, _ in groups) <= 1
    assert groups == [(4, False)] * 9 + [(4, True), (5, True)]


def test_a_source_may_have_a_long_name(nats: NatsServer, publisher: Publisher) -> None:
    """The server takes 64 characters for the name of a batch."""
    publisher.atomically(2, "s" * 63).publish(iter([message("1", Place.of_change(200, 0))]), lambda _: True)
    assert [message.body["n"] for message in read_all(nats, subject="cdc.t.insert")] == ["1"]

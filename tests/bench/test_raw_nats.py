"""Raw publishing, which ours is compared with, stores what it is given, in order."""

from __future__ import annotations

from contextlib import closing

import pytest

from bench.nats import MODES, SUBJECT, JetStream
from bench.raw_nats import AtomicBatches, FastIngest, Message, RawConnection, RawWay, WithIds
from bench.servers import NeverArrived


@pytest.mark.parametrize("way", [WithIds(), FastIngest(), AtomicBatches()], ids=lambda way: way.name)
def test_every_way_stores_all_messages_in_order(way: RawWay) -> None:
    messages = [Message(SUBJECT, f"id {number}", f"payload {number}".encode()) for number in range(2_500)]
    with closing(JetStream(MODES[0])) as jetstream:
        jetstream.make_stream()
        with closing(RawConnection(jetstream.server)) as connection:
            connection.publish(way, list(way.pieces(messages)))

        assert jetstream.stored() == len(messages)
        read = jetstream.last_messages(2_400)

    assert [message.payload for message in read] == [message.payload for message in messages[-2_400:]]


def test_what_the_server_refuses_is_no_figure() -> None:
    batch = AtomicBatches()
    messages = [Message(SUBJECT, "", b"payload")] * 2
    with closing(JetStream(MODES[0])) as jetstream:
        jetstream.make_stream()
        with closing(RawConnection(jetstream.server)) as connection:
            (piece,) = batch.pieces(messages)
            refused = piece._replace(frames=piece.frames.replace(b"Sequence: 2", b"Sequence: 3"))
            with pytest.raises(NeverArrived):
                connection.publish(batch, [refused])

        assert jetstream.stored() == 0

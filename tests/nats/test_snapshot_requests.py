"""Requests for snapshots, as the pipeline hears and answers them: who repeats one means the same snapshot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import nats as nats_client
import pytest

from penstock.changes.encoded import Encoding
from penstock.destinations.nats import snapshots, streams
from penstock.destinations.nats.documents import position_text
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.schemas import SchemaBucket
from penstock.destinations.nats.snapshots import SnapshotDesk
from penstock.destinations.protocol import Delivery, TableCopy, WantedSnapshot
from penstock.destinations.work import Workers
from penstock.embedded.nats import USER, NatsServer
from penstock.model.visibility import Visibility
from tests.capture.running import eventually
from tests.changes.made import START, table
from tests.nats.reading import read_all

AGAIN = json.dumps({"request_id": "r1"}).encode()


@pytest.fixture
def desk(nats: NatsServer) -> Iterator[SnapshotDesk]:
    options = NatsOptions.model_validate({"servers": nats.url, "user": USER, "password": nats.password})
    link = NatsLink.of(options.access())
    link.run(streams.ensured(link, options))
    schemas = SchemaBucket(link, options.schema_bucket, Encoding.MESSAGE_PACK, "shop", {"eu": "port=1"})
    desk = SnapshotDesk(link, options, schemas, workers=Workers(None))  # type: ignore[arg-type]
    desk.asked()
    eventually(lambda: desk._heard_by is not None)
    yield desk
    link.close()


class Asker:
    """Sends requests and returns the answers, whoever gives them meanwhile."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server

    def __call__(self, desk: SnapshotDesk, table: str, payload: bytes, *, takes: bool = True) -> Any:
        return asyncio.run(self._asked(desk, table, payload, takes))

    async def _asked(self, desk: SnapshotDesk, table: str, payload: bytes, takes: bool) -> Any:
        client = await nats_client.connect(self._server.url, user=USER, password=self._server.password)
        try:
            asking = asyncio.create_task(client.request(f"snapshot.request.{table}", payload, timeout=20))
            while takes and not asking.done():
                for request in desk.asked():
                    desk.take(request)
                await asyncio.sleep(0.01)
            return msgpack.unpackb((await asking).data)
        finally:
            await client.close()


@pytest.fixture
def ask(nats: NatsServer) -> Asker:
    return Asker(nats)


def wanted(answer: dict[str, Any]) -> WantedSnapshot:
    return WantedSnapshot(answer["snapshot_id"], answer["table"])


def test_what_commits_just_where_a_snapshot_was_taken_is_behind_its_lsn(
    desk: SnapshotDesk, ask: Asker, nats: NatsServer
) -> None:
    request = wanted(ask(desk, "users", AGAIN))
    users = table(1, "public.users", {"id": "int4"})
    copy = TableCopy(request.id, Delivery("eu", users, users.name), "", "", ())
    assert desk.make(request, copy, Visibility(700, 700), START) == 0
    (meta,) = read_all(nats, "INIT", "init.meta.users")
    assert meta.body["lsn"] < position_text(START)


def test_who_asks_again_is_promised_the_same_snapshot(desk: SnapshotDesk, ask: Asker) -> None:
    first = ask(desk, "users", AGAIN)
    assert first["status"] == "queued"
    assert ask(desk, "users", AGAIN, takes=False) == first
    assert ask(desk, "users", msgpack.packb({"request_id": "r1"}), takes=False) == first
    others = [
        ask(desk, "orders", AGAIN),
        ask(desk, "users", b'{"request_id": "r2"}'),
        ask(desk, "users", b'{"request_id": 1}'),
        ask(desk, "users", b'{"request_id": 1}'),
        ask(desk, "users", b""),
    ]
    assert len({answer["snapshot_id"] for answer in (first, *others)}) == 6


def test_a_request_that_is_forgotten_is_a_new_one(desk: SnapshotDesk, ask: Asker) -> None:
    first = ask(desk, "users", AGAIN)
    desk.forget(wanted(first))
    assert ask(desk, "users", AGAIN)["snapshot_id"] != first["snapshot_id"]


def test_who_asks_again_before_anybody_looked_is_answered_once_somebody_does(
    desk: SnapshotDesk, ask: Asker, nats: NatsServer
) -> None:
    async def asked_once() -> None:
        client = await nats_client.connect(nats.url, user=USER, password=nats.password)
        await client.publish("snapshot.request.users", AGAIN, reply="nowhere")
        await client.flush()
        await client.close()

    asyncio.run(asked_once())
    (request,) = eventually(desk.asked)
    answer = ask(desk, "users", AGAIN)
    assert (answer["snapshot_id"], list(desk.asked())) == (request.id, [])


def test_who_waits_for_no_reply_is_told_in_the_stream(
    desk: SnapshotDesk, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of wrong names and requests, and of a table that is there no more, though the bucket still has it."""
    monkeypatch.setattr(snapshots, "OTHERS_ANSWER", 0.1)
    users = table(1, "public.users", {"id": "int4"})
    desk._schemas.published(Delivery("eu", users, users.name))

    async def ask_plainly() -> None:
        client = await nats_client.connect(nats.url, user=USER, password=nats.password)
        for name in ("users", "public.users", "a..b", *(f"wrong{number}" for number in range(20))):
            await client.publish(f"snapshot.request.{name}", b"{" if name.startswith("wrong") else b"")
        await client.close()

    asyncio.run(ask_plainly())
    (request,) = eventually(desk.asked)
    desk.pass_on(request, "no table of this name")
    eventually(lambda: len(read_all(nats, "INIT", "init.error.>")) == 22)
    assert {message.subject.removeprefix("init.error.") for message in read_all(nats, "INIT", "init.>")} == {
        *("users", "public.users"),
        *(f"wrong{number}" for number in range(20)),
    }


def test_no_request_is_more_than_it_may_be(
    desk: SnapshotDesk, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_KNOWN", 2)
    for payload in (b"[" * 4000, b"\x91" * 4000, b"{", b"5", b"x" * 5000):
        assert "expected" in ask(desk, "users", payload)["error"]
    assert "expected a table" in ask(desk, "public.users", b"")["error"]
    for name in ("a", "b"):
        assert ask(desk, name, b"")["status"] == "queued"
    assert "2 snapshots are waited for already" in ask(desk, "c", b"")["error"]

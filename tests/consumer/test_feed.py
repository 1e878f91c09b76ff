"""The library by itself: descriptions, a table copied and followed, a stream read through what befalls it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest

from penstock.changes.encoded import Encoding
from penstock.consumer import Feed, MessageLogged, Mirror, RowChange, SnapshotInfo, SnapshotRows, snapshots
from penstock.consumer import ordered as reading
from penstock.consumer.access import ConsumerAccess, connect
from penstock.embedded.nats import USER, NatsServer
from penstock.model import TableName
from penstock.model.errors import FeedUnreachable, SnapshotUnanswered
from penstock.model.nats_names import bucket_key, dictionary_key
from tests.consumer.producing import Producer, model_table
from tests.consumer.staging import ITEMS, Stage, items, row, staged


def test_keys_of_the_bucket_hold_what_a_key_may() -> None:
    assert bucket_key("users") == "users"
    assert bucket_key("a_b%2Eé") == "a_b=252E=C3=A9"
    assert dictionary_key("x y", 7) == "x=20y.dictionary.7"


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_table_is_copied_and_followed(nats: NatsServer, encoding: Encoding) -> None:
    async def play() -> None:
        async with Producer(nats, encoding) as producer, Feed.open(producer.access) as feed:
            table = items()
            table.rows = [row(number) for number in range(7)]
            await producer.add(table, model_table(2, TableName("s.x", "é"), ITEMS))
            assert {each.name for each in (await feed.tables()).values()} == {"public.items", '"s.x".é'}
            described = await feed.table("items")
            assert described is not None
            assert (described.row_key, described.columns[0].data_type) == (("id",), "integer")
            steps: list[Any] = []
            async with aclosing(feed.copy_and_follow("items")) as following:
                async for step in following:
                    steps.append(step)
                    if sum(len(each.rows) for each in steps if isinstance(each, SnapshotRows)) == 7:
                        break
                at = producer.begin()
                producer.delete(at, table, row(3))
                producer.commit(at)
                await producer.publish(twice=True)
                producer.reset(table)
                await producer.publish()
                change = await anext(following)
                assert isinstance(change, RowChange)
                assert (change.operation, change.data["id"]) == ("DELETE", 3)
                again = await anext(following)
                assert isinstance(again, SnapshotInfo)
                assert again.row_count == 6
            assert isinstance(steps[0], SnapshotInfo)

    asyncio.run(play())


def test_changes_are_followed_however_often_the_ids_of_transactions_come_round(nats: NatsServer) -> None:
    async def play() -> None:
        async with Producer(nats) as producer, Feed.open(producer.access) as feed:
            table = items()
            await producer.add(table)
            async with aclosing(feed.copy_and_follow("items")) as following:
                info = await anext(following)
                assert isinstance(info, SnapshotInfo)
                for id, transactions, weeks in ((1, 2**31 + 5, 3), (2, 2**31 + 6, 2)):
                    at = producer.begin()
                    producer.insert(at, table, row(id))
                    ((_, change),) = at.changes
                    change["xid"] = (info.visibility.xmax + transactions) & 0xFFFFFFFF
                    change["committed_at"] += timedelta(weeks=weeks)
                    producer.commit(at)
                await producer.publish()
                async with asyncio.timeout(10):
                    for id in (1, 2):
                        step = await anext(following)
                        assert isinstance(step, RowChange)
                        assert step.data["id"] == id

    asyncio.run(play())


def test_messages_of_postgresql_are_no_changes_of_a_table_called_so(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        table = model_table(1, TableName("public", "message"), ITEMS)
        await producer.add(table)
        logged = producer.encoded({"operation": "MESSAGE", "content": "hello", "prefix": "insert"})
        await producer.client.jetstream().publish("cdc.message.insert", logged)
        async with Feed.open(producer.access) as feed, aclosing(feed.changes(0)) as changes:
            assert isinstance(await anext(changes), MessageLogged)
        at = producer.begin()
        producer.insert(at, table, row(1))
        producer.commit(at)
        await stage.check()

    staged(nats, tmp_path, scenario)


@pytest.mark.parametrize("wait", [1.0, 0.3])
def test_a_stream_is_read_on_when_the_server_comes_back(
    own_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    """However short the looks are: a server that was restarted does not know the consumer any more."""
    monkeypatch.setattr(reading, "HEARTBEAT", 0.3)
    monkeypatch.setattr(reading, "SILENCE", 0.75)

    async def published() -> None:
        client = await nats_client.connect(own_nats.url, user=USER, password=own_nats.password)
        for _ in range(20):
            await client.jetstream().publish("cdc.users.insert", b"x")
        await client.close()

    async def scenario(stage: Stage) -> None:
        access = stage.producer.access
        sequences: list[int] = []
        async with Feed.open(access) as feed, aclosing(feed.entries(0, wait=wait)) as batches:
            for end in (20, 40):
                await published()
                async with asyncio.timeout(30):
                    while len(sequences) < end:
                        sequences += [entry.sequence for entry in await anext(batches)]
                own_nats.kill()
                own_nats.start()
        assert sequences == [*range(1, 41)]

    staged(own_nats, tmp_path, scenario)


def test_a_consumer_needs_few_rights(tmp_path: Path) -> None:
    rights = {"publish": ["snapshot.request.>", "$JS.API.>"], "subscribe": ["_INBOX.>"]}
    server = NatsServer(tmp_path / "nats")
    users = [
        {"user": USER, "password": server.password},
        {"user": "app", "password": "app", "permissions": rights},
    ]
    server.settings["accounts"] = {"PENSTOCK": {"jetstream": "enabled", "users": users}}
    server.start()

    async def scenario(stage: Stage) -> None:
        stage.producer.compressed = True
        await stage.producer.add(items())
        stage.producer.access = replace(stage.producer.access, user="app", password="app")
        await stage.check()

    try:
        staged(server, tmp_path, scenario)
    finally:
        server.remove()


def test_who_may_not_ask_jetstream_is_told_so(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    users = [{"user": "app", "password": "app", "permissions": {"publish": {"deny": ["$JS.API.>"]}}}]
    server.settings["accounts"] = {"PENSTOCK": {"jetstream": "enabled", "users": users}}
    server.start()

    async def opened() -> None:
        async with Feed.open(ConsumerAccess((server.url,), "app", "app")):
            pass

    try:
        with pytest.raises(FeedUnreachable, match=r"JetStream does not answer: .*permissions violation"):
            asyncio.run(opened())
    finally:
        server.remove()


def test_who_is_not_let_in_is_told_so_however_the_server_hangs_up(nats: NatsServer) -> None:
    """Of many at once, the server resets the connections of some before we have closed them."""

    async def play() -> None:
        access = ConsumerAccess((nats.url,), user=USER, password="wrong")
        met = await asyncio.gather(*(connect(access) for _ in range(500)), return_exceptions=True)
        assert {type(each) for each in met} == {FeedUnreachable}

    asyncio.run(play())


def test_a_mirror_that_begins_anew_waits_for_a_server_that_is_away(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        await producer.add(items())
        await stage.check()
        at = producer.begin()
        producer.insert(at, producer.tables["items"], row(1))
        producer.commit(at)
        await producer.publish()
        await producer.client.jetstream().purge_stream("CDC")

        def note(text: str) -> None:
            stage.notes.append(text)
            if "all tables are loaded anew" in text:
                own_nats.kill()
                asyncio.get_running_loop().call_later(2, own_nats.start)

        async with asyncio.timeout(60):
            await Mirror(producer.access, stage.path, note=note).run(once=True)
        assert any("all tables are loaded anew" in text for text in stage.notes)
        await stage.check()

    staged(own_nats, tmp_path, scenario)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PATIENCE", 0.4)
    monkeypatch.setattr(snapshots, "_LOOK", 0.1)


async def caught_up_while_others_are_served(stage: Stage) -> None:
    """The stream of snapshots never stands still."""
    catching_up = asyncio.create_task(stage.catch_up())
    async with asyncio.timeout(20):
        while not catching_up.done():
            await stage.producer.client.jetstream().publish("init.snap.another.1.1", b"")
            await asyncio.sleep(0.1)
    await catching_up


@pytest.mark.usefixtures("impatient")
def test_a_snapshot_that_takes_its_time_is_waited_for(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        producer.answer_pause = 1.0
        producer.snapshot_pause = 1.5
        await producer.add(items())
        await caught_up_while_others_are_served(stage)
        assert producer.snapshots == 1
        producer.answer_pause = 10.0
        producer.reset(producer.tables["items"])
        await producer.publish()
        with pytest.raises(SnapshotUnanswered, match="nobody answers"):
            await stage.catch_up()

    staged(nats, tmp_path, scenario)


@pytest.mark.usefixtures("impatient")
def test_a_snapshot_that_was_forgotten_is_asked_for_again(nats: NatsServer, tmp_path: Path) -> None:
    """By a pipeline that was killed, and goes on to make those of others."""

    async def scenario(stage: Stage) -> None:
        stage.producer.forgets = 2
        await stage.producer.add(items())
        await caught_up_while_others_are_served(stage)
        assert stage.producer.snapshots == 3
        await stage.check()

    staged(nats, tmp_path, scenario)


def test_descriptions_are_all_there_however_often_they_are_asked_for(nats: NatsServer) -> None:
    """The client's own list of a bucket's keys was empty in one of about eighty."""

    async def play() -> None:
        async with Producer(nats) as producer, Feed.open(producer.access) as feed:
            await producer.add(items())
            for _ in range(60):
                found = await asyncio.gather(*(feed.descriptions() for _ in range(40)))
                assert {len(tables) for tables in found} == {1}

    asyncio.run(play())

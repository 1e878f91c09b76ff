"""A source that was restored from a backup: its positions come again, and a reset tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from penstock.consumer import Feed, Mirror, RowChange, SnapshotInfo, SnapshotRows
from penstock.embedded.nats import NatsServer
from tests.consumer.comparing import differences
from tests.consumer.producing import ModelTable, Producer
from tests.consumer.staging import Stage, items, row, staged


def goes_back(producer: Producer, table: ModelTable) -> None:
    producer.go_back()
    table.rows = [row(1, "before"), row(8)]
    producer.reset(table)
    at = producer.begin()
    producer.insert(at, table, row(9))
    producer.update(at, table, row(1, "before"), row(1, "after"))
    producer.commit(at)


async def begin(producer: Producer, table: ModelTable) -> None:
    table.rows = [row(1)]
    await producer.add(table)


def change(producer: Producer, table: ModelTable, id: int) -> None:
    at = producer.begin()
    producer.insert(at, table, row(id))
    producer.commit(at)


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[None]:
    mirroring = asyncio.create_task(Mirror(stage.producer.access, stage.path).run())
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        mirroring.cancel()


async def equal(stage: Stage) -> None:
    while not stage.path.exists() or differences(stage.path, stage.producer):
        await asyncio.sleep(0.1)


def test_a_mirror_takes_another_snapshot(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await begin(producer, table)
        await stage.check()
        change(producer, table, 2)
        await stage.check()
        goes_back(producer, table)
        await stage.check()
        change(producer, table, 10)
        await stage.check()
        assert producer.snapshots == 2

    staged(nats, tmp_path, scenario)


@pytest.mark.parametrize("id", [16_400, 16_399], ids=["that was there", "that was made again"])
def test_a_mirror_that_runs_follows_the_table_that_has_the_name_now(
    nats: NatsServer, tmp_path: Path, id: int
) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await begin(producer, table)
        async with running(stage):
            await equal(stage)
            change(producer, table, 2)
            await producer.publish()
            await equal(stage)
            table = items(id)
            await begin(producer, table)
            goes_back(producer, table)
            await producer.publish()
            await equal(stage)

    staged(nats, tmp_path, scenario)


def test_a_snapshot_that_is_loaded_meanwhile_is_void(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        producer.snapshot_pause = 0.5
        await begin(producer, table)
        async with running(stage):
            while not producer.snapshots:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            goes_back(producer, table)
            await producer.publish()
            await equal(stage)
        assert producer.snapshots == 2

    staged(nats, tmp_path, scenario)


def test_a_reset_from_before_a_snapshot_was_asked_for_does_not_void_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    """Of several that a mirror finds, the first lets it ask for a snapshot."""

    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await begin(producer, table)
        await stage.check()
        goes_back(producer, table)
        for _ in range(4):
            producer.reset(table)
        await stage.check()
        assert producer.snapshots == 2

    staged(nats, tmp_path, scenario)


def test_who_copies_and_follows_begins_again(nats: NatsServer) -> None:
    async def play() -> None:
        async with Producer(nats) as producer, Feed.open(producer.access) as feed:
            table = items()
            await begin(producer, table)
            async with asyncio.timeout(20), aclosing(feed.copy_and_follow("items")) as following:
                assert isinstance(await anext(following), SnapshotInfo)
                assert isinstance(await anext(following), SnapshotRows)
                change(producer, table, 2)
                await producer.publish()
                assert isinstance(await anext(following), RowChange)
                goes_back(producer, table)
                await producer.publish()
                again = await anext(following)
                assert isinstance(again, SnapshotInfo)
                assert again.row_count == 3
                rows = await anext(following)
                assert isinstance(rows, SnapshotRows)
                change(producer, table, 10)
                await producer.publish()
                step = await anext(following)
                assert isinstance(step, RowChange)
                assert step.data["id"] == 10

    asyncio.run(play())

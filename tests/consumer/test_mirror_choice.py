"""Which tables a mirror has, and what it tells where it cannot."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import msgpack
import pytest

from penstock.consumer import Mirror
from penstock.embedded.nats import NatsServer
from penstock.model import TableName
from penstock.model.errors import MirrorRefused, SnapshotRefused, SnapshotUnanswered, UnknownTable
from tests.consumer.comparing import differences, mirrored
from tests.consumer.producing import model_table
from tests.consumer.staging import ITEMS, Stage, items, row, staged


def test_only_chosen_tables_are_there(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        await producer.add(
            items(1, "users"), items(2, "orders"), model_table(3, TableName("s", "users"), ITEMS)
        )
        await stage.catch_up("users")
        assert set(mirrored(stage.path)) == {"users"}
        await stage.catch_up("users", "s.*")
        assert set(mirrored(stage.path)) == {"users", "s_users"}
        await stage.catch_up("orders")
        assert set(mirrored(stage.path)) == {"orders"}
        with pytest.raises(UnknownTable, match=r"no table is called public\.nobody"):
            await stage.catch_up("nobody")

    staged(nats, tmp_path, scenario)


def test_a_table_that_is_refused_does_not_hold_the_others(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table, items(2, "gone"))
        del producer.tables["gone"]
        await stage.catch_up()  # nobody has asked for it by name
        assert any("there is no such table (table gone)" in note for note in stage.notes)
        assert differences(stage.path, producer) == {}
        with pytest.raises(SnapshotRefused, match=r"there is no such table \(table gone\)"):
            await stage.catch_up("items", "gone")
        assert differences(stage.path, producer) == {}

    staged(nats, tmp_path, scenario)


def test_nobody_who_gives_snapshots_is_told(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.producer.add(items())
        await stage.producer.client.close()
        with pytest.raises(SnapshotUnanswered, match="nobody answers"):
            await stage.catch_up()

    staged(nats, tmp_path, scenario)


def test_a_file_that_is_none_of_ours_is_left_alone(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        with closing(sqlite3.connect(stage.path)) as connection:
            connection.execute("create table mine (x)")
        with pytest.raises(MirrorRefused, match="no mirror of ours"):
            await stage.catch_up()
        stage.path.write_text("no database at all, but long enough to be looked at" * 20)
        with pytest.raises(MirrorRefused, match="cannot be read"):
            await stage.catch_up()

    staged(nats, tmp_path, scenario)


def test_a_name_that_two_sources_have_is_refused(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        await stage.check()
        mirror = asyncio.create_task(Mirror(producer.access, stage.path).run())
        for number in range(200):
            at = producer.begin()
            producer.insert(at, table, row(number))
            producer.commit(at)
            ((subject, message),) = producer.outbox
            theirs = msgpack.unpackb(message) | {"source": "other", "relation_id": 7}
            producer.outbox.append((subject, producer.encoded(theirs)))
            await producer.publish()
            await asyncio.sleep(0.02)
            if mirror.done():
                break
        with pytest.raises(MirrorRefused, match="two sources, other and shop, publish a table"):
            await mirror

    staged(nats, tmp_path, scenario)

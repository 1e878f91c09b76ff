"""What a mirror calls its tables, where names pass from one to another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.consumer import Mirror
from penstock.embedded.nats import NatsServer
from penstock.model import TableName
from tests.consumer.staging import Stage, items, row, staged


def test_a_name_that_another_table_takes(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, old, other = stage.producer, items(1, "a"), items(2, "b")
        await producer.add(old, other)
        old.rows, other.rows = [row(1)], [row(2)]
        await stage.check()
        # a becomes tmp, of which nothing is said yet; b becomes a, and is changed.
        del producer.tables["a"]
        await producer.redescribe(other, replace(other.schema, name=TableName("public", "a")))
        at = producer.begin()
        producer.insert(at, other, row(3))
        producer.commit(at)
        await stage.check()
        await producer.redescribe(old, replace(old.schema, name=TableName("public", "tmp")))
        await stage.check()
        assert producer.snapshots == 2
        # Dropped, and made anew.
        new = items(9, "a")
        new.rows = [row(40)]
        await producer.add(new)
        producer.reset(new)
        at = producer.begin()
        producer.insert(at, new, row(41))
        producer.commit(at)
        await stage.check()

    staged(nats, tmp_path, scenario)


def test_a_table_that_the_stream_does_not_name_is_called_as_the_bucket_says(
    nats: NatsServer, tmp_path: Path
) -> None:
    async def scenario(stage: Stage) -> None:
        producer, one, other = stage.producer, items(1, "a"), items(2, "b")
        await producer.add(one, other)
        one.rows, other.rows = [row(1)], [row(2)]
        await stage.check()
        # b becomes a; a becomes c, which is in the bucket alone: its rows come under the name of before.
        del producer.tables["a"]
        await producer.redescribe(other, replace(other.schema, name=TableName("public", "a")))
        await producer.publish()
        producer.reset(one, named=False)
        at = producer.begin()
        producer.insert(at, one, row(3))
        producer.commit(at)
        await producer.publish()
        one.schema = replace(one.schema, name=TableName("public", "c"))
        await producer.add(one)
        await stage.check()

    staged(nats, tmp_path, scenario)


def test_tables_that_are_reset_under_other_names(nats: NatsServer, tmp_path: Path) -> None:
    """Nothing else tells their names: no change came under them."""

    async def scenario(stage: Stage) -> None:
        producer, one, other = stage.producer, items(1, "a"), items(2, "b")
        await producer.add(one, other)
        one.rows, other.rows = [row(1)], [row(2)]
        await stage.check()
        one.schema, other.schema = (
            replace(table.schema, name=like.schema.name) for table, like in ((one, other), (other, one))
        )
        await producer.add(one, other)
        producer.reset(one)
        producer.reset(other)
        await producer.publish()
        await stage.check()

    staged(nats, tmp_path, scenario)


@pytest.mark.parametrize("seed", range(3))
def test_tables_that_swap_names_while_they_are_loaded(nats: NatsServer, tmp_path: Path, seed: int) -> None:
    """Through a third name or not, told at once or only with the next change, published twice or not."""
    random = Random(seed)

    async def scenario(stage: Stage) -> None:
        producer, tables = stage.producer, [items(number, f"t{number}") for number in range(1, 6)]
        producer.snapshot_pause = 0.1
        await producer.add(*tables)
        mirror = asyncio.create_task(Mirror(producer.access, stage.path, note=stage.notes.append).run())
        for number in range(60):
            one, other = random.sample(tables, 2)
            names = one.schema.name, other.schema.name
            for table, name in zip((one, other), reversed(names), strict=True):
                await producer.redescribe(table, replace(table.schema, name=name))
                at = producer.begin()
                producer.insert(at, table, row(number))
                producer.commit(at)
                if random.random() < 0.3:
                    producer.reset(random.choice(tables))
                if random.random() < 0.7:
                    await producer.publish(twice=random.random() < 0.3)
                await asyncio.sleep(random.choice([0, 0, 0.05, 0.1]))
        await asyncio.sleep(0.2)
        mirror.cancel()
        await asyncio.wait([mirror])
        await stage.check()
        assert mirror.cancelled()

    staged(nats, tmp_path, scenario)

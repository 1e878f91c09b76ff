"""A mirror that is killed again and again, while its source works at random, equals it in the end."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changes.encoded import Encoding
from penstock.consumer import Mirror
from penstock.embedded.nats import NatsServer
from penstock.model import Column, TableName
from tests.changes.made import column_type
from tests.consumer.comparing import differences
from tests.consumer.forking import MirrorProcesses
from tests.consumer.producing import ModelTable, Producer, Transaction, Values, model_table

SECONDS = 4.0


class RandomWork:
    """Transactions of all kinds, some of them open for a while; each row is touched by one at a time."""

    def __init__(self, producer: Producer, chance: random.Random) -> None:
        self.producer = producer
        self.chance = chance
        self._open: list[tuple[Transaction, set[str]]] = []
        self._number = 0

    async def step(self) -> None:
        producer, chance = self.producer, self.chance
        what = chance.random()
        if what < 0.01:
            await self._alter(chance.choice([*producer.tables.values()]))
        elif what < 0.015:
            producer.reset(chance.choice([*producer.tables.values()]))
        else:
            self._transact()
        if self._open and chance.random() < 0.3:
            self._commit(self._open.pop(chance.randrange(len(self._open))))
        if chance.random() < 0.6:
            await producer.publish(chance.randrange(1, 30), twice=chance.random() < 0.1)

    async def finish(self) -> None:
        while self._open:
            self._commit(self._open.pop())
        await self.producer.publish()

    def _transact(self) -> None:
        transaction = self.producer.begin()
        free = [table for table in self.producer.tables.values() if not self._is_busy(table)]
        if not free:
            self.producer.commit(transaction)
            return
        table = self.chance.choice(free)
        rows = list(table.rows)  # as the transaction sees them
        for _ in range(self.chance.randrange(1, 6)):
            self._change(transaction, table, rows)
        if self.chance.random() < 0.3:
            self._open.append((transaction, {table.token}))
        else:
            self.producer.commit(transaction)

    def _change(self, transaction: Transaction, table: ModelTable, rows: list[Values]) -> None:
        producer, chance = self.producer, self.chance
        what = chance.random()
        if what < 0.02:
            producer.truncate(transaction, table)
            rows.clear()
        elif not rows or (what < 0.45 and len(rows) < 30):
            row = self._row(table, rows)
            producer.insert(transaction, table, row)
            rows.append(row)
        elif what < 0.8:
            place = chance.randrange(len(rows))
            after = dict(rows[place])
            if chance.random() < 0.3 or not table.primary_key:
                after = self._row(table, rows)
            after["v"] = str(self._number)
            producer.update(transaction, table, rows[place], after)
            rows[place] = after
        else:
            producer.delete(transaction, table, rows.pop(chance.randrange(len(rows))))

    def _row(self, table: ModelTable, rows: list[Values]) -> Values:
        """A row with a key that is free; without a key, often one that is there already."""
        self._number += 1
        row: Values = {column.name: None for column in table.schema.columns}
        while True:
            for name in table.primary_key:
                row[name] = str(self.chance.randrange(-20, 20))
            taken = any(all(each[name] == row[name] for name in table.primary_key) for each in rows)
            if not table.primary_key or not taken:
                return row | {"v": str(self.chance.randrange(3)) if not table.primary_key else "new"}

    def _is_busy(self, table: ModelTable) -> bool:
        return any(table.token in tokens for _, tokens in self._open)

    def _commit(self, entry: tuple[Transaction, set[str]]) -> None:
        self.producer.commit(entry[0])

    async def _alter(self, table: ModelTable) -> None:
        """Add or drop a column, or rename the table: PostgreSQL waits for those who write to it."""
        if self._is_busy(table):
            return
        extra = [column for column in table.schema.columns if column.name.startswith("extra")]
        what = self.chance.random()
        if what < 0.3:
            name = TableName("public", f"{table.schema.name.name.split('_')[0]}_{self._number}")
            self._number += 1
            await self.producer.redescribe(table, replace(table.schema, name=name))
        elif extra:
            columns = tuple(column for column in table.schema.columns if column is not extra[0])
            table.rows = [{k: v for k, v in row.items() if k != extra[0].name} for row in table.rows]
            await self.producer.redescribe(table, replace(table.schema, columns=columns))
        else:
            added = Column("extra", column_type("text"), key=not table.primary_key)
            table.rows = [row | {"extra": "default"} for row in table.rows]
            await self.producer.redescribe(
                table, replace(table.schema, columns=(*table.schema.columns, added))
            )


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_mirror_that_is_killed_at_any_moment_equals_its_source(
    nats: NatsServer, tmp_path: Path, encoding: Encoding
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    path = tmp_path / "mirror.db"
    asyncio.run(_killed_at_random(nats, path, encoding, random.Random(seed)))


async def _killed_at_random(
    server: NatsServer, path: Path, encoding: Encoding, chance: random.Random
) -> None:
    async with Producer(server, encoding) as producer:
        producer.snapshot_pause = 0.02
        await producer.add(
            model_table(1, TableName("public", "keyed"), {"id": "int4", "v": "text"}),
            model_table(2, TableName("public", "pairs"), {"a": "text", "b": "int8", "v": "text"}, ("a", "b")),
            model_table(3, TableName("public", "loose"), {"v": "text", "n": "int4"}, ()),
        )
        work = RandomWork(producer, chance)
        kills = 0
        with closing(MirrorProcesses(producer.access, path)) as mirrors:
            mirrors.start()
            end, next_kill = time.monotonic() + SECONDS, 0.0
            while time.monotonic() < end:
                await work.step()
                await asyncio.sleep(0.002)
                if time.monotonic() > next_kill:
                    mirrors.kill()
                    mirrors.start()
                    kills += 1
                    next_kill = time.monotonic() + chance.uniform(0.01, 0.4)
            await work.finish()
        await Mirror(producer.access, path, note=print).run(once=True)
        notes = path.with_name(f"{path.name}.notes").read_text()
        print(notes)
        print(f"{kills} kills, {producer.snapshots} snapshots")
        assert differences(path, producer) == {}
        assert "does not fit" not in notes  # a mirror that erred would mend itself by a snapshot

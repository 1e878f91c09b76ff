"""A producer and a mirror, played together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.changes.encoded import Encoding
from penstock.consumer import Mirror
from penstock.embedded.nats import NatsServer
from penstock.model import TableName
from tests.consumer.comparing import differences
from tests.consumer.producing import ModelTable, Producer, Values, model_table

ITEMS = {"id": "int4", "name": "text", "info": "jsonb", "ratio": "float8"}


def items(id: int = 16_400, name: str = "items") -> ModelTable:
    return model_table(id, TableName("public", name), ITEMS)


def row(
    id: int, name: str | None = "x", info: str = '{"b": [1, 2.5], "a": "é"}', ratio: str = "0.5"
) -> Values:
    return {"id": str(id), "name": name, "info": info, "ratio": ratio}


class Stage:
    """A producer, and a mirror that is run up to the end of the stream."""

    def __init__(self, producer: Producer, path: Path) -> None:
        self.producer = producer
        self.path = path
        self.notes: list[str] = []

    async def catch_up(self, *tables: str) -> None:
        await Mirror(self.producer.access, self.path, tables, self.notes.append).run(once=True)

    async def check(self) -> None:
        await self.producer.publish()
        await self.catch_up()
        assert differences(self.path, self.producer) == {}


def staged(
    server: NatsServer,
    path: Path,
    scenario: Callable[[Stage], Awaitable[None]],
    encoding: Encoding = Encoding.MESSAGE_PACK,
) -> None:
    async def play() -> None:
        async with Producer(server, encoding) as producer:
            await scenario(Stage(producer, path / "mirror.db"))

    asyncio.run(play())

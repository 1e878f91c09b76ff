"""Two pipelines of one source that publish into one stream at the same time: neither loses, doubles or stops
anything of the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgpack
import nats as nats_client
import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError
from pyspark.sql import SparkSession

from penstock.destinations.nats import snapshots
from penstock.embedded.nats import USER, NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.nats.test_pipeline import changes, to_nats
from tests.pipeline.running import configuration, running

TRANSACTIONS = 40
ROWS = 50
"""Of each transaction."""


@pytest.mark.parametrize("delivery", [pytest.param("ids", marks=pytest.mark.slow), "atomic"])
def test_two_pipelines_share_a_stream(
    spark: SparkSession,
    database: Database,
    nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delivery: str,
) -> None:
    names = ("ours", "theirs")
    database.execute(*(f"create table {name} (id int primary key)" for name in names))
    files = [
        configuration(
            tmp_path / name,
            database,
            # In one process they would share the connection, and the name of the query.
            to_nats(nats, delivery=delivery) | {"name": name, "servers": [nats.url] * number},
            pipeline=name,
            sources=[{"name": "source", "dsn": database.dsn, "tables": {"include": [f"public.{name}"]}}],
        )
        for number, name in enumerate(names, 1)
    ]
    with running(files[0], spark) as ours, running(files[1], spark) as theirs:
        ours.until_phase(Phase.READY, "public.ours")
        theirs.until_phase(Phase.READY, "public.theirs")
        for number in range(TRANSACTIONS):
            rows = f"select n from generate_series({number * ROWS + 1}, {(number + 1) * ROWS}) n"
            database.execute(*(f"insert into {name} {rows}" for name in names))
        theirs.until(lambda: len(changes(nats)) >= 2 * TRANSACTIONS * ROWS)
        asyncio.run(_asked_of_both(nats, names))
    with running(files[0], spark):  # what the other has published is not taken for its own
        database.execute("insert into ours values (0)")
        ours.until(lambda: len(changes(nats)) > 2 * TRANSACTIONS * ROWS)
        monkeypatch.setattr(snapshots, "OTHERS_ANSWER", 0.5)
        asyncio.run(_asked_of_who_left(nats, "theirs"))
    found = Counter((message.body["table"], message.body["data"]["id"]) for message in changes(nats))
    expected = {("theirs", n) for n in range(1, TRANSACTIONS * ROWS + 1)}
    expected |= {("ours", n) for n in range(TRANSACTIONS * ROWS + 1)}
    assert set(found) == expected
    assert set(found.values()) == {1}


async def _asked_of_who_left(nats: NatsServer, table: str) -> None:
    client = await nats_client.connect(nats.url, user=USER, password=nats.password)
    try:
        await _refused(client, table)
    finally:
        await client.close()


async def _refused(client: Client, table: str) -> None:
    answer = await client.request(f"snapshot.request.{table}", timeout=5)
    assert "no table of this name" in msgpack.unpackb(answer.data)["error"]


async def _asked_of_both(nats: NatsServer, tables: Sequence[str]) -> None:
    """Both pipelines hear every request: whose table it is answers, and of others' both say that there is
    none, without delay."""
    client = await nats_client.connect(nats.url, user=USER, password=nats.password)
    try:
        for _ in range(5):
            for table in tables:
                answer = await client.request(f"snapshot.request.{table}", timeout=5)
                assert msgpack.unpackb(answer.data)["status"] == "queued"
        await _refused(client, "nobodys")
        for table in (*tables, "nobodys"):
            await client.publish(f"snapshot.request.{table}")
        await client.flush()
        errors = await client.jetstream().subscribe("init.error.>", stream="INIT", ordered_consumer=True)
        assert (await errors.next_msg(timeout=20)).subject == "init.error.nobodys"
        with contextlib.suppress(TimeoutError):
            while True:
                assert (await errors.next_msg(timeout=2)).subject == "init.error.nobodys"
    finally:
        await client.close()

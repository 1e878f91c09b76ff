"""NATS is away, full, or changes its leader: nothing is lost, the order stays, and it goes on by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest
from nats.errors import Error
from pyspark.sql import SparkSession

from penstock.embedded.nats import USER, NatsServer
from penstock.model.phases import Phase
from penstock.state.store import Store
from tests.bed import Database, started_nats
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import Running, configuration, running

TABLE = "create table events (id bigint primary key, body text)"


def insert(database: Database, first: int, last: int, body: str = "x") -> None:
    """One transaction for each three."""
    database.execute(
        *(
            f"insert into events select n, '{body}' from generate_series({n}, {min(n + 2, last)}) n"
            for n in range(first, last + 1, 3)
        )
    )


def arrived(server: NatsServer) -> list[int]:
    """What is there; nothing, while nobody answers."""
    try:
        return [message.body["data"]["id"] for message in read_all(server, subject="cdc.events.insert")]
    except Error:
        return []


def waits_for(pipeline: Running) -> str:
    with Store.open(pipeline.config.state.url.get_secret_value(), "test", exclusive=False) as store:
        found = store.waiting("source", "bus")
    return str(found[1]) if found else ""


async def in_jetstream(server: NatsServer, work: Any) -> Any:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        return await work(client.jetstream(timeout=20))
    finally:
        await client.close()


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_a_server_that_is_killed_and_comes_back(
    spark: SparkSession, database: Database, own_nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    database.execute(TABLE)
    with running(configuration(tmp_path, database, to_nats(own_nats, delivery=delivery)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.events")
        insert(database, 1, 60)
        pipeline.until(lambda: len(arrived(own_nats)) > 20)
        own_nats.kill()
        insert(database, 61, 120)
        pipeline.until(lambda: "NATS" in waits_for(pipeline))
        own_nats.start()
        pipeline.until(lambda: len(arrived(own_nats)) >= 120)
        pipeline.until(lambda: not waits_for(pipeline))
    assert arrived(own_nats) == list(range(1, 121))


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_a_full_stream_is_waited_for(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    """Of a stream that somebody else has made, with a limit; small messages do not overtake large ones."""
    made = {"name": "CDC", "subjects": ["cdc.>"], "max_bytes": 1_500_000, "discard": "new"}
    made |= {"allow_batched": True, "allow_atomic": True}

    async def create(jetstream: Any) -> None:
        await jetstream._api_request("$JS.API.STREAM.CREATE.CDC", json.dumps(made).encode())

    asyncio.run(in_jetstream(nats, create))
    database.execute(TABLE)
    with running(configuration(tmp_path, database, to_nats(nats, delivery=delivery)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.events")
        insert(database, 1, 6, "x" * 300_000)
        insert(database, 7, 12)
        pipeline.until(lambda: "maximum bytes" in waits_for(pipeline))
        before = arrived(nats)
        asyncio.run(
            in_jetstream(nats, lambda jetstream: jetstream.purge_stream("CDC", subject="cdc.events.*"))
        )
        pipeline.until(lambda: 12 in arrived(nats))
    after = arrived(nats)
    assert len(before) < 12
    assert before + [n for n in after if n not in before] == list(range(1, 13))
    assert after == sorted(after)


async def step_down(jetstream: Any) -> None:
    await jetstream._api_request("$JS.API.STREAM.LEADER.STEPDOWN.CDC", b"")


@pytest.fixture
def cluster() -> Iterator[list[NatsServer]]:
    servers = [started_nats() for _ in range(3)]
    for server in servers:
        server.stop()
        server.join("three", servers)
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_leaders_that_change_and_servers_that_die(
    spark: SparkSession, database: Database, cluster: list[NatsServer], tmp_path: Path, delivery: str
) -> None:
    database.execute(TABLE)
    settings = to_nats(cluster[0], delivery=delivery, replicas=3, servers=[server.url for server in cluster])
    with running(configuration(tmp_path, database, settings), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.events")
        for round in range(4):
            insert(database, round * 300 + 1, round * 300 + 150)

            with suppress(Error):
                asyncio.run(in_jetstream(cluster[0], step_down))
            insert(database, round * 300 + 151, round * 300 + 300)
            victim = cluster[1 + round % 2]
            victim.kill()
            pipeline.until(lambda: len(arrived(cluster[0])) > 10)
            victim.start()
        pipeline.until(lambda: 1200 in arrived(cluster[0]), seconds=120)
    assert arrived(cluster[0]) == list(range(1, 1201))

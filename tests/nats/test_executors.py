"""On a cluster of executors: changes and snapshots are published by Spark's tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.nats_destination import consumer_access, nats_options
from penstock.cli.snapshot import request_snapshot
from penstock.config import load
from penstock.embedded.nats import NatsServer
from tests.bed import Database
from tests.capture.running import eventually
from tests.nats.reading import Read, read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration
from tests.pipeline.test_kills import Supervised


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_tasks_publish_in_the_order_of_the_source(
    database: Database, nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    database.execute("create table t (id int primary key, name text)", "create table u (id int primary key)")
    settings = to_nats(nats, delivery=delivery, compression="zstd")
    file = configuration(tmp_path, database, settings, spark={"master": "local-cluster[2,1,1024]"})
    pipeline = Supervised(file)

    def inserted() -> list[Read]:
        pipeline.check()
        found = read_all(nats, subject="cdc.*.insert")
        return found if len(found) == 35_000 else []

    def are_ready() -> Any:
        pipeline.check()
        return pipeline.said().count("table ready") >= 2

    try:
        eventually(are_ready, 120)
        database.execute(
            "insert into t select n, 'name ' || n from generate_series(1, 30000) n;"
            "insert into u select generate_series(1, 5000)"
        )
        found = eventually(inserted, 120)
        info = asyncio.run(request_snapshot(consumer_access(nats_options(load(file), None)), "t", "public.t"))
    finally:
        code = pipeline.stop()
    assert code == 0, pipeline.said()
    assert [message.body["table"] for message in found] == ["t"] * 30_000 + ["u"] * 5_000
    assert [message.body["data"]["id"] for message in found[:30_000]] == list(range(1, 30_001))
    assert info.row_count == 30_000

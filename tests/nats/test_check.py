"""What `penstock check` says of a NATS destination, and what a pipeline refuses to start with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.nats.target import NatsTarget
from penstock.destinations.plugin import type_of
from penstock.embedded.nats import USER, NatsServer
from penstock.model.errors import NotReady
from penstock.postgres.preflight.check import Check
from tests.bed import Database, started_nats
from tests.changes.made import table
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration


def checked(source: Database, folder: Path, **settings: Any) -> dict[str, Check]:
    config = load(configuration(folder, source, {"name": "bus", "type": "nats", **settings}))
    (destination,) = config.destinations
    tables = [table(1, "public.a_b", {"id": "int4"}), table(2, "a.b", {"id": "int4"})]
    return {check.name: check for check in type_of(destination).check(config, destination, tables)}


def made(server: NatsServer, **config: Any) -> None:
    async def create() -> None:
        client = await nats_client.connect(server.url, user=USER, password=server.password)
        await client.request(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode())
        await client.close()

    asyncio.run(create())


def test_a_server_that_is_ready(database: Database, nats: NatsServer, tmp_path: Path) -> None:
    checks = checked(database, tmp_path, **to_nats(nats))
    assert {name: check.outcome for name, check in checks.items()} == {
        "server": "ok",
        "jetstream": "ok",
        "stream CDC": "ok",
        "stream INIT": "ok",
        "stream KV_schemas": "ok",
        "subjects": "failure",
    }
    assert "a.b, public.a_b" in checks["subjects"].detail
    assert nats.password not in repr(checks)


def test_limits_that_drop_messages_are_told(database: Database, nats: NatsServer, tmp_path: Path) -> None:
    minute = 60 * 10**9
    made(nats, name="CDC", subjects=["cdc.>"], max_age=minute, max_msgs=1_000_000, allow_batched=True)
    made(nats, name="INIT", subjects=["init.>"])
    checks = checked(database, tmp_path / "ids", **to_nats(nats))
    assert checks["positions"].outcome == "warning"
    found = checks["stream CDC"]
    assert found.outcome == "warning"
    assert "after 60 s" in found.detail
    assert "beyond 1000000 messages" in found.detail
    found = checked(database, tmp_path / "atomic", **to_nats(nats, delivery="atomic"))["stream CDC"]
    assert found.outcome == "failure"
    assert "allow_atomic" in found.remedy


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"password": "wrong"}, "does not let us in"),
        ({"servers": "nats://127.0.0.1:1"}, "cannot be reached"),
        ({"create_streams": False}, "it is not there"),
        ({"sync": "always", "monitoring_url": "of clients"}, "not flushed"),
    ],
)
def test_what_fails_is_told(
    database: Database, nats: NatsServer, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    if "monitoring_url" in settings:  # where the server speaks to clients, not to monitors
        settings = settings | {"monitoring_url": nats.url.replace("nats:", "http:")}
    checks = checked(database, tmp_path, **(to_nats(nats) | settings))
    failed = [check.detail for check in checks.values() if check.outcome == "failure"]
    assert any(said in detail for detail in failed)


def test_rights_that_are_missing_are_told(database: Database, own_nats: NatsServer, tmp_path: Path) -> None:
    """And nothing is stored to find that out."""
    made(own_nats, name="CDC", subjects=["cdc.>"], allow_batched=True)
    made(own_nats, name="INIT", subjects=["init.>"])
    assert "permissions" not in checked(database, tmp_path / "all", **to_nats(own_nats))
    own_nats.stop()
    user = {"user": USER, "password": own_nats.password}
    denied = {"publish": {"deny": ["cdc.>"]}, "subscribe": {"deny": ["snapshot.>"]}}
    account = {"jetstream": "enabled", "users": [user | {"permissions": denied}]}
    own_nats.settings |= {"accounts": {"PENSTOCK": account}}
    own_nats.start()
    config = load(configuration(tmp_path / "few", database, to_nats(own_nats)))
    (destination,) = config.destinations
    found = [c for c in type_of(destination).check(config, destination, []) if c.name == "permissions"]
    assert [(check.outcome, check.detail.partition(":")[0]) for check in found] == [
        ("failure", "the user may not publish to cdc.>"),
        ("warning", "the user may not subscribe to snapshot.request.>"),
    ]
    assert not read_all(own_nats, "INIT", "init.>")


def test_an_acknowledgement_means_the_disk_or_nothing_starts(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    def target(server: NatsServer) -> NatsTarget:
        settings = to_nats(server, sync="always", monitoring_url=server.monitoring_url, delivery="atomic")
        config = load(configuration(tmp_path, database, settings))
        (destination,) = config.destinations
        made = type_of(destination).make(config, destination)
        assert isinstance(made, NatsTarget)
        return made

    refused = target(nats)
    with pytest.raises(NotReady, match="not flushed"):
        refused.open(spark)
    refused.close()
    flushing = started_nats(sync_interval="always")
    try:
        accepted = target(flushing)
        accepted.open(spark)
        accepted.close()
    finally:
        flushing.remove()

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
from penstock.model.errors import DestinationUnready, NotReady
from penstock.postgres.preflight.check import Check
from tests.bed import Database, started_nats
from tests.changes.made import table
from tests.destinations.given import Given
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.nats.test_stopping_tables import USERS, delivered, opened
from tests.pipeline.running import configuration


def checked(source: Database, folder: Path, **settings: Any) -> dict[str, Check]:
    """By name: of several the last."""
    return {check.name: check for check in all_checked(source, folder, **settings)}


def all_checked(source: Database, folder: Path, **settings: Any) -> list[Check]:
    config = load(configuration(folder, source, {"name": "bus", "type": "nats", **settings}))
    (destination,) = config.destinations
    tables = [table(1, "public.a_b", {"id": "int4"}), table(2, "a.b", {"id": "int4"})]
    return type_of(destination).check(config, destination, tables)


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
    failures = [
        check.remedy
        for check in all_checked(database, tmp_path / "atomic", **to_nats(nats, delivery="atomic"))
        if check.name == "stream CDC" and check.outcome == "failure"
    ]
    assert failures == ["Set `allow_atomic` of it"]


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_a_stream_of_some_tables_is_used_as_it_is_or_refused(
    spark: SparkSession, given: Given, database: Database, nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    """One that has no room for positions cannot be delivered to atomically; the check says so."""
    allowed = {"allow_batched": True, "allow_atomic": True}
    made(nats, name="CDC", subjects=["cdc.a_b.*", "cdc.users.*"], **allowed)
    made(nats, name="INIT", subjects=["init.snap.>", "init.meta.*", "init.error.*"])
    checks = all_checked(database, tmp_path / "check", **to_nats(nats, delivery=delivery))
    assert {check.name for check in checks} >= {"server", "stream CDC", "stream INIT", "stream KV_schemas"}
    assert {check.outcome for check in checks if check.name == "server"} == {"ok"}
    if delivery == "atomic":
        (failed,) = [check for check in checks if check.name == "stream CDC"]
        assert failed.outcome == "failure"
        assert "cdc._position.>" in failed.remedy
        with pytest.raises(NotReady, match=r"does not keep cdc\._position"):
            opened(spark, database, nats, tmp_path / "atomic", delivery=delivery)
        return
    (warned,) = [check for check in checks if check.name == "positions"]
    assert warned.outcome == "warning"
    given.deliver(USERS)
    target = opened(spark, database, nats, tmp_path / "ids", delivery=delivery)
    target.begin("eu", given.start)
    for number in (1, 2):
        assert given.write(target, given.spool.insert(USERS, (str(number), "new")).commit()) == []
    assert delivered(nats, "users") == [1, 2]
    target.close()


def test_tables_that_no_stream_takes_are_told(database: Database, nats: NatsServer, tmp_path: Path) -> None:
    made(nats, name="CDC", subjects=["cdc._position.>", "cdc.users.*"], allow_batched=True)
    found = checked(database, tmp_path, **to_nats(nats))["stream CDC"]
    assert found.outcome == "failure"
    assert found.detail == "it does not take all messages of public.a_b, a.b"
    assert "cdc.a_b.insert" in found.remedy


@pytest.mark.parametrize(
    ("settings", "outcome", "said"),
    [
        ({"storage": "memory"}, "warning", "in memory"),
        ({"retention": "interest"}, "warning", "`retention: interest`"),
        ({"retention": "workqueue"}, "warning", "`retention: workqueue`"),
        ({"no_ack": True}, "failure", "confirms nothing"),
    ],
)
def test_a_stream_that_loses_what_it_took_is_told(
    database: Database, nats: NatsServer, tmp_path: Path, settings: dict[str, Any], outcome: str, said: str
) -> None:
    made(nats, name="CDC", subjects=["cdc.>"], allow_batched=True, **settings)
    checks = all_checked(database, tmp_path, **to_nats(nats))
    told = [check for check in checks if check.name == "stream CDC"]
    assert [check.outcome for check in told if said in check.detail] == [outcome]


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
    spark: SparkSession, given: Given, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """Also where a server is restarted with other settings, and of a stream that has no disk."""

    def target(server: NatsServer, **other: Any) -> NatsTarget:
        url = server.monitoring_url
        settings = to_nats(server, sync="always", monitoring_url=url, delivery="atomic", **other)
        sources = [{"name": "eu", "dsn": database.dsn}]
        config = load(configuration(tmp_path, database, settings, sources=sources))
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
        accepted.begin("eu", given.start)
        given.deliver(USERS)
        batch = given.batch(given.spool.insert(USERS, ("1", "one")).commit())
        flushing.stop()
        del flushing.jetstream["sync_interval"]
        flushing.start()
        for _ in range(2):
            with pytest.raises(DestinationUnready, match="not flushed"):
                accepted.write(batch)
        flushing.stop()
        flushing.jetstream["sync_interval"] = "always"
        flushing.start()
        assert accepted.write(batch) == []
        accepted.tear_down()

        made(flushing, name="MEMORY", subjects=["mem.>"], storage="memory", allow_atomic=True)
        forgetful = target(flushing, stream="MEMORY")
        with pytest.raises(NotReady, match="kept in memory"):
            forgetful.open(spark)
        forgetful.close()
    finally:
        flushing.remove()

"""What others can do to a pipeline into NATS: long prefixes, huge defaults, floods of requests, a source that
went back."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import nats as nats_client
from nats.errors import NoRespondersError
from pyspark.sql import SparkSession

from penstock.destinations.protocol import Delivery
from penstock.embedded.nats import USER, NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.capture.running import eventually
from tests.changes.made import START, table
from tests.destinations.given import Given
from tests.nats.reading import read_all
from tests.nats.test_pipeline import schemas, to_nats
from tests.nats.test_stopping_tables import delivered, opened
from tests.pipeline.running import configuration, running

USERS = table(1, "public.users", {"id": "int4", "name": "text"})


async def flood(server: NatsServer, count: int) -> None:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    for number in range(count):
        await client.publish(f"snapshot.request.nobody{number}", b"")
    await client.flush()
    await client.close()


def test_nobody_stops_the_others(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """A logical message with a prefix that no subject holds, a content that no message holds; a default of
    two megabytes; thousands of requests for tables that are not there."""
    database.execute(
        "create table fine (id int primary key)",
        f"create table odd (id int primary key, note text default '{'x' * 2_000_000}')",
    )
    with running(configuration(tmp_path, database, to_nats(nats)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.fine", "public.odd")
        asyncio.run(flood(nats, 3000))
        database.execute(
            "select pg_logical_emit_message(true, repeat('p.', 10000), 'long')",
            "select pg_logical_emit_message(true, 'large', repeat('c', 3000000))",
            "select pg_logical_emit_message(true, 'fits', repeat('c', 900000))",
            "insert into odd values (1, 'short')",
            "insert into fine values (1)",
        )
        pipeline.until(lambda: delivered(nats, "fine") == [1])
        assert delivered(nats, "odd") == [1]
    long, large, fitting = read_all(nats, subject="cdc.message.*")
    assert (long.body["content"], len(long.body["prefix"])) == (b"long", 1000)
    assert len(long.subject) < 60
    assert (large.body["content"], large.body["size"]) == (None, 3_000_000)
    assert fitting.body["content"] == b"c" * 900_000
    assert len(read_all(nats, "INIT", "init.error.*")) < 500


def send_raw(server: NatsServer, *frames: bytes) -> None:
    """What no client sends."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        login = json.dumps({"user": USER, "pass": server.password, "verbose": False}).encode()
        connection.sendall(b"CONNECT " + login + b"\r\n" + b"".join(frames) + b"PING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard += connection.recv(65536)


def test_a_request_that_is_no_text_stalls_nothing(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    database.execute("create table fine (id int primary key)")
    with running(configuration(tmp_path, database, to_nats(nats)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.fine")
        pipeline.until(lambda: asyncio.run(asked(nats, "fine")))
        send_raw(nats, b"PUB snapshot.request.\xff 0\r\n\r\n")
        database.execute("insert into fine values (1)")
        pipeline.until(lambda: delivered(nats, "fine") == [1])
        pipeline.until(lambda: asyncio.run(asked(nats, "fine")))
        send_raw(nats, b"PUB snapshot.request.fine cdc.fine.insert 0\r\n\r\n")
        database.execute("insert into fine values (2)")
        pipeline.until(lambda: delivered(nats, "fine") == [1, 2])
        pipeline.until(lambda: len(read_all(nats, "INIT", "init.meta.fine")) == 3)
    assert {message.body["operation"] for message in read_all(nats)} == {"RESET", "INSERT"}


async def asked(server: NatsServer, table: str) -> bool:
    """Whether somebody hears and promises a snapshot."""
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        answer = await client.request(f"snapshot.request.{table}", b"", timeout=10)
    except (NoRespondersError, TimeoutError):
        return False
    finally:
        await client.close()
    return b"queued" in answer.data


def test_a_source_that_went_back_is_followed_from_there(
    spark: SparkSession, given: Given, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """Its positions come a second time, with other changes; whoever knows that tells the destination."""
    given.deliver(USERS)
    target = opened(spark, database, nats, tmp_path / "first", delivery="atomic")
    target.begin("eu", START)
    for number in range(1, 4):
        given.write(target, given.spool.insert(USERS, (str(number), "before")).commit())
    again = given.batch(given.start, START)
    assert target.write(again) == []
    assert delivered(nats, "users") == [1, 2, 3]
    target.begin("eu", START)
    assert target.write(again) == []
    assert delivered(nats, "users") == [1, 2, 3, 1, 2, 3]
    target.close()


def test_a_position_outlives_the_messages(
    spark: SparkSession, given: Given, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """What was published and has expired does not come again."""
    given.deliver(USERS)
    target = opened(spark, database, nats, tmp_path / "first", delivery="atomic", retention="1s")
    target.begin("eu", START)
    batch = given.batch(given.spool.insert(USERS, ("1", "one")).commit())
    assert target.write(batch) == []
    assert delivered(nats, "users") == [1]
    target.close()
    eventually(lambda: not delivered(nats, "users"))
    again = opened(spark, database, nats, tmp_path / "again", delivery="atomic", retention="1s")
    assert again.write(batch) == []
    assert delivered(nats, "users") == []
    again.close()


def test_ids_of_several_sources_are_told_apart(
    spark: SparkSession, given: Given, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    given.deliver(USERS)
    target = opened(spark, database, nats, tmp_path / "two", ("eu", "us"))
    target.begin("eu", given.start)
    assert target.write(given.batch(given.spool.insert(USERS, ("1", "one")).commit())) == []
    (message,) = read_all(nats, subject="cdc.users.insert")
    assert message.headers["Nats-Msg-Id"] == message.body["msg_id"]
    assert message.body["msg_id"].startswith("eu-")
    target.close()


def test_tables_of_two_sources_that_have_one_number_are_both_described(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    target = opened(spark, database, nats, tmp_path, ("eu", "us"))
    other = table(1, "public.others", {"id": "int4"})
    target.describe("eu", [Delivery("eu", USERS, USERS.name)])
    target.describe("us", [Delivery("us", other, other.name)])
    assert {key: document["source"] for key, document in schemas(nats).items()} == {
        "users": "eu",
        "others": "us",
    }
    target.forget("us", other.id)
    assert schemas(nats).keys() == {"users"}
    target.close()

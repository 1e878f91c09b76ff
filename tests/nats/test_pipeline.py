"""A pipeline into NATS: what a consumer finds there."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgpack
import nats as nats_client
import pytest
import zstandard
from nats.js.errors import BucketNotFoundError, KeyNotFoundError
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.destinations.nats.snapshots import SnapshotDesk
from penstock.embedded.nats import USER, NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.nats.reading import Read, read_all
from tests.pipeline.running import configuration, running


def to_nats(server: NatsServer, **other: Any) -> dict[str, Any]:
    login = {"servers": server.url, "user": USER, "password": server.password}
    return {"name": "bus", "type": "nats", **login, **other}


def changes(server: NatsServer) -> list[Read]:
    return [message for message in read_all(server) if message.body["operation"] not in ("RESET", "SCHEMA")]


async def request(server: NatsServer, table: str, payload: bytes = b"") -> Any:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        answer = await client.request(f"snapshot.request.{table}", payload, timeout=20)
        return msgpack.unpackb(answer.data)
    finally:
        await client.close()


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_changes_and_a_snapshot_arrive(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    database.execute(
        "create table users (id int primary key, name text, doc jsonb)",
        "insert into users select n, 'before ' || n, null from generate_series(1, 300) n",
    )
    file = configuration(tmp_path, database, to_nats(nats, delivery=delivery, snapshot_chunk_rows=100))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        database.execute(
            "insert into users values (1001, 'new', '{\"a\": [1, null]}')",
            "update users set name = 'changed' where id = 1",
            "delete from users where id = 2",
            "begin; insert into users values (-1, 'one', null); insert into users values (0, 'two', null);"
            "select pg_logical_emit_message(true, 'note.it', 'said'); commit",
        )
        pipeline.until(lambda: len(changes(nats)) >= 6)
        answer = asyncio.run(request(nats, "users"))
        (meta,) = pipeline.until(lambda: read_all(nats, "INIT", "init.meta.users"))
        refused = asyncio.run(request(nats, "nobody"))
        malformed = asyncio.run(request(nats, "users", b"{"))
    found = changes(nats)
    assert [message.subject for message in found] == [
        "cdc.users.insert",
        "cdc.users.update",
        "cdc.users.delete",
        "cdc.users.insert",
        "cdc.users.insert",
        "cdc.message.note%2Eit",
    ]
    assert found[0].body["data"] == {"id": 1001, "name": "new", "doc": {"a": [1, None]}}
    assert found[5].body["content"] == b"said"
    assert (answer["status"], answer["snapshot_id"]) == ("queued", meta.body["snapshot_id"])
    assert (meta.body["row_count"], meta.body["batch_count"]) == (302, 4)
    assert [column["is_nullable"] for column in meta.body["columns"]] == [False, True, True]
    chunks = read_all(nats, "INIT", f"init.snap.users.{meta.body['snapshot_id']}.*")
    rows = {row["id"]: row["name"] for chunk in chunks for row in chunk.body["data"]}
    assert rows == dict(database.query("select id, name from users"))
    assert "no table of this name" in refused["error"]
    assert "expected an empty request" in malformed["error"]


def test_a_snapshot_gives_way_to_who_waits_for_its_lock(
    spark: SparkSession,
    database: Database,
    nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def altered(*arguments: Any) -> int:
        database.execute("set lock_timeout = '10s'; alter table users add name text")
        return make(*arguments)

    make = SnapshotDesk.make
    monkeypatch.setattr(SnapshotDesk, "make", altered)
    database.execute("create table users (id int primary key); insert into users values (1)")
    file = configuration(tmp_path, database, to_nats(nats))
    with running(file, spark) as pipeline, capture_logs() as lines:
        pipeline.until_phase(Phase.READY, "public.users")
        asyncio.run(request(nats, "users"))
        (failed,) = pipeline.until(lambda: [line for line in lines if line["event"] == "snapshot failed"])
    assert "gave way to process" in failed["error"]


@pytest.mark.parametrize("rules", [{}, {"drop": ["doc"], "where": "id > 0"}])
def test_a_dictionary_is_trained_with_the_rows_as_they_are_delivered(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path, rules: dict[str, Any]
) -> None:
    database.execute(
        "create table users (id int primary key, name text, doc jsonb)",
        "insert into users select n, 'a name ' || md5(n::text), null from generate_series(1, 3000) n",
    )
    settings = to_nats(nats, compression="zstd", tables={"public.users": rules})
    with running(configuration(tmp_path, database, settings), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        asyncio.run(request(nats, "users"))
        pipeline.until(lambda: read_all(nats, "INIT", "init.meta.users"))
    payloads, dictionaries = asyncio.run(compressed(nats))
    for payload in payloads:
        number = zstandard.get_frame_parameters(payload).dict_id
        data = zstandard.ZstdCompressionDict(dictionaries[f"users.dictionary.{number}"])
        chunk = msgpack.unpackb(zstandard.ZstdDecompressor(dict_data=data).decompress(payload))
        assert ("doc" in chunk["data"][0]) is not bool(rules)


async def compressed(server: NatsServer) -> tuple[list[bytes], dict[str, bytes]]:
    """The chunks of snapshots as they are, and the dictionaries."""
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        jetstream = client.jetstream()
        info = await jetstream.stream_info("INIT", subjects_filter="init.snap.>")
        chunks = [await jetstream.get_last_msg("INIT", subject) for subject in info.state.subjects or ()]
        bucket = await jetstream.key_value("schemas")
        info = await jetstream.stream_info("KV_schemas", subjects_filter="$KV.schemas.*.dictionary.*")
        keys = [subject.removeprefix("$KV.schemas.") for subject in info.state.subjects or ()]
        assert chunks
        return [each.data or b"" for each in chunks], {
            key: (await bucket.get(key)).value or b"" for key in keys
        }
    finally:
        await client.close()


def test_schemas_are_in_the_bucket_with_a_version_that_grows(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """Under the table's present name, and only there; a message tells of each, before the first row."""
    database.execute("create table users (id int primary key, name text not null default 'x')")
    file = configuration(tmp_path, database, to_nats(nats))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        first = pipeline.until(lambda: schemas(nats).get("users"))
        database.execute("insert into users values (1)")
        pipeline.until(lambda: len(changes(nats)) == 1)
        database.execute("alter table users add age int; insert into users values (2, 'two', 2)")
        pipeline.until(lambda: len(changes(nats)) == 2)
        database.execute("alter table users rename to people", "insert into people values (3, 'three', 3)")
        pipeline.until(lambda: len(changes(nats)) == 3)
        pipeline.until(lambda: "users" not in schemas(nats))
    with running(file, spark) as pipeline:
        database.execute("insert into people values (4, 'four', 4)")
        pipeline.until(lambda: len(changes(nats)) == 4)
    named = {column["name"]: column for column in first["columns"]}
    assert (named["name"]["is_nullable"], named["name"]["column_default"]) == (False, "'x'::text")
    assert (named["id"]["data_type"], named["id"]["key"], first["primary_key"]) == ("integer", True, ["id"])
    (last,) = schemas(nats).values()
    assert [column["name"] for column in last["columns"]] == ["id", "name", "age"]
    assert (last["table"], last["relation_id"]) == ("people", first["relation_id"])
    told = [m for m in read_all(nats) if m.body["operation"] in ("SCHEMA", "INSERT")]
    assert [message.subject for message in told] == [
        "cdc.users.insert",
        "cdc.users.schema",
        "cdc.users.insert",
        "cdc.people.schema",
        "cdc.people.insert",
        "cdc.people.insert",
    ]
    assert first["version"] < told[1].body["version"]


def test_a_bucket_that_is_gone_is_filled_again_at_the_start(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """Though nobody writes; and what is excluded over a restart is removed from it."""
    database.execute("create table users (id int primary key)", "create table other (id int primary key)")
    file = configuration(tmp_path, database, to_nats(nats))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users", "public.other")
        before = pipeline.until(lambda: schemas(nats) if len(schemas(nats)) == 2 else None)
    asyncio.run(delete_bucket(nats))
    with running(file, spark) as pipeline:
        pipeline.until(lambda: len(schemas(nats)) == 2)
    assert schemas(nats)["users"]["columns"] == before["users"]["columns"]
    another = before["other"] | {"pipeline": "another"}
    asyncio.run(put_in_bucket(nats, others=msgpack.packb(another), text=b"{", empty=msgpack.packb({})))
    excluding = {"tables": {"include": ["public.*"], "exclude": ["public.other"]}}
    sources = [{"name": "source", "dsn": database.dsn, **excluding}]
    with running(configuration(tmp_path, database, to_nats(nats), sources=sources), spark) as pipeline:
        pipeline.until(lambda: schemas(nats).keys() == {"users", "others", "text", "empty"})


def test_defaults_and_what_may_be_null_are_told_when_they_change(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path
) -> None:
    """In the bucket, while the table is idle and over a restart; in the message of a new schema."""

    def described() -> tuple[int, bool, str | None]:
        document = schemas(nats)["users"]
        (name,) = [column for column in document["columns"] if column["name"] == "name"]
        return document["version"], name["is_nullable"], name["column_default"]

    database.execute("create table users (id int primary key, name text)")
    file = configuration(tmp_path, database, to_nats(nats))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        pipeline.until(lambda: "users" in schemas(nats))
        version, *_ = described()
        assert described() == (version, True, None)
        database.execute("alter table users alter name set not null")
        pipeline.until(lambda: described() == (version + 1, False, None))
        database.execute("alter table users alter name set default 'x'")
        pipeline.until(lambda: described() == (version + 2, False, "'x'::text"))
    database.execute("alter table users alter name drop not null")
    with running(file, spark) as pipeline:
        pipeline.until(lambda: described() == (version + 3, True, "'x'::text"))
        database.execute("alter table users add age int default 7", "insert into users values (1)")
        (told,) = pipeline.until(lambda: read_all(nats, subject="cdc.users.schema"))
    details = [(column["is_nullable"], column["column_default"]) for column in told.body["columns"]]
    assert details == [(False, None), (True, "'x'::text"), (True, "7")]
    assert told.body["version"] > version + 3


async def delete_bucket(server: NatsServer) -> None:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    await client.jetstream().delete_key_value("schemas")
    await client.close()


async def put_in_bucket(server: NatsServer, **values: bytes) -> None:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    bucket = await client.jetstream().key_value("schemas")
    for key, value in values.items():
        await bucket.put(key, value)
    await client.close()


def schemas(server: NatsServer) -> dict[str, Any]:
    """What the bucket has, by key."""
    return asyncio.run(_schemas(server))


async def _schemas(server: NatsServer) -> dict[str, Any]:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        jetstream = client.jetstream()
        try:
            bucket = await jetstream.key_value("schemas")
        except BucketNotFoundError:
            return {}
        info = await jetstream.stream_info("KV_schemas", subjects_filter="$KV.schemas.>")
        found = {}
        for subject in info.state.subjects or ():
            with contextlib.suppress(KeyNotFoundError):
                key = subject.removeprefix("$KV.schemas.")
                found[key] = msgpack.unpackb((await bucket.get(key)).value or b"")
        return found
    finally:
        await client.close()

"""Files on an object store: a real one, which is also killed."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.config import load
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.storage import Storage, Written
from penstock.model import TableName
from penstock.model.errors import ConfigError, StorageFailed
from penstock.model.phases import Phase
from penstock.state.store import Store
from tests.bed import Database
from tests.files.consumer import Consumer, Registered
from tests.files.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed, weed
from tests.files.test_files import until_rebuilt
from tests.pipeline.running import Running, configuration, difference, running


@pytest.fixture(scope="module")
def seaweed() -> Iterator[Seaweed]:
    store = Seaweed.started(weed())
    yield store
    store.remove()


class RemoteConsumer(Consumer):
    """Takes each file from the store before it looks at it."""

    def __init__(self, source: Database, into: Database, system: fs.FileSystem, folder: Path) -> None:
        super().__init__(source, into)
        self._system = system
        self._folder = folder

    def _take(self, connection: psycopg.Connection[Any], table: str, file: Registered) -> None:
        key = file.path.removeprefix("s3://")
        local = self._folder / key
        local.parent.mkdir(parents=True, exist_ok=True)
        with self._system.open_input_stream(key, compression=None) as stored:
            local.write_bytes(stored.read())
        super()._take(connection, table, file._replace(path=str(local)))


def objects(seaweed: Seaweed, folder: str) -> list[str]:
    """Everything below a folder of the bucket, folders with a slash at their end."""
    selector = fs.FileSelector(f"{BUCKET}/{folder}", allow_not_found=True, recursive=True)
    return sorted(
        info.path.removeprefix(f"{BUCKET}/{folder}/") + ("/" if info.type == fs.FileType.Directory else "")
        for info in seaweed.system().get_file_info(selector)
    )


def waits_for(pipeline: Running) -> str:
    """Why the destination is waited for; empty if it is not."""
    url = pipeline.config.state.url.get_secret_value()
    with Store.open(url, "test", exclusive=False) as store:
        found = store.waiting("source", "files")
    return str(found[1]) if found else ""


@pytest.mark.slow
def test_a_table_arrives_and_a_store_that_was_away_is_waited_for(
    spark: SparkSession,
    source: Database,
    destination: Database,
    seaweed: Seaweed,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source.execute(
        "create table users (id int primary key, name text)",
        "create table large (id int primary key, text text)",
        "alter table large alter text set storage external",
        # more than the driver copies by itself
        "insert into large select i, repeat(md5(i::text), 200) from generate_series(1, 200) i",
        """insert into users values (1, ''), (2, null), (3, 'a,"b"')""",
    )
    to_store = {"name": "files", "type": "files", "base_path": seaweed.uri("pipeline")}
    tables = [TableName("public", "users"), TableName("public", "large")]
    consumer = RemoteConsumer(source, destination, seaweed.system(), tmp_path / "taken")
    file = configuration(tmp_path, source, to_store)
    with capture_logs() as logged, running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users", "public.large")
        source.execute(
            "update users set name = 'new' where id = 1",
            "delete from users where id = 2",
            "insert into users select i, 'by a task' from generate_series(1000, 3100) i",  # again
        )
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)

        seaweed.kill()
        source.execute("insert into users values (4, 'while it is away')")
        told = pipeline.until(lambda: waits_for(pipeline))
        assert f"s3://{BUCKET}/pipeline/public." in told
        assert "destination files" in told
        assert "Check that the store answers" in told
        assert {state.phase for state in pipeline.tables().values()} == {Phase.READY}
        seaweed.start()
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        pipeline.until(lambda: not waits_for(pipeline))
        shown = repr(pipeline.config)
    registered = source.query("select file_path, sha256, file_size_bytes from cdc_registry.file_log")
    for path, digest, size in registered:
        with seaweed.system().open_input_stream(path.removeprefix("s3://"), compression=None) as stored:
            data = stored.read()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, size)
    assert {path.removeprefix(f"s3://{BUCKET}/pipeline/") for path, *_ in registered} == {
        name for name in objects(seaweed, "pipeline") if not name.endswith("/") and name != ".penstock"
    }
    assert "waiting for the destination" in {line["event"] for line in logged}
    everything = [
        *capfd.readouterr(),
        str(logged),
        told,
        shown,
        repr(load(file)),
        *stored_text(source, tmp_path),
    ]
    assert_no_secret(everything)


def stored_text(source: Database, folder: Path) -> Iterator[str]:
    """All that the source's database and the state store hold."""
    for schema, table in source.query(
        "select nspname, relname from pg_class c join pg_namespace n on n.oid = relnamespace"
        " where nspname in ('cdc_registry', 'penstock') and relkind = 'r'"
    ):
        yield from (row for (row,) in source.query(f'select t::text from "{schema}"."{table}" t'))
    for file in folder.glob("state.db*"):
        yield file.read_bytes().decode("latin-1")


def assert_no_secret(texts: list[str]) -> None:
    for text in texts:
        for secret in (ACCESS_KEY, SECRET_KEY, "s3cr3t"):
            assert secret not in text, re.findall(f".{{0,80}}{re.escape(secret)}.{{0,80}}", text)


def test_a_file_is_an_object_as_it_was_written(seaweed: Seaweed) -> None:
    storage = Storage(seaweed.uri("plain"), "files")
    storage.claim("me", anew=True)
    blocks = [b"x" * 1000, b"y" * (20 << 20), b"z"]  # more than waits in memory
    written = storage.write("t/2024/data.csv.gz", blocks)
    with seaweed.system().open_input_stream(f"{BUCKET}/plain/{written.path}", compression=None) as object:
        assert object.read() == b"".join(blocks)
    assert b"".join(storage.read(written.path)) == b"".join(blocks)
    assert storage.exists(written.path)
    assert not storage.exists("t/2024")
    assert storage.shown(written.path) == f"s3://{BUCKET}/plain/t/2024/data.csv.gz"


def test_credentials_may_come_from_the_environment(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    storage = Storage(f"s3://{BUCKET}/environment?{seaweed.parameters}", "files")
    assert b"".join(storage.read(storage.write("t/1/a", [b"data"]).path)) == b"data"


@pytest.mark.slow
def test_a_pipeline_takes_its_credentials_from_the_environment(
    source: Database, destination: Database, seaweed: Seaweed, tmp_path: Path
) -> None:
    """Those of its tasks, too."""
    source.execute(
        "create table large (id int primary key, text text)",
        "alter table large alter text set storage external",
        # more than the driver copies by itself
        "insert into large select i, repeat(md5(i::text), 200) from generate_series(1, 200) i",
    )
    base = f"s3://{BUCKET}/by-environment?{seaweed.parameters}"
    file = configuration(tmp_path, source, {"name": "files", "type": "files", "base_path": base})
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    ran = subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", "run", file, "--once"],
        env=os.environ | credentials,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert_no_secret([ran.stdout, ran.stderr])
    RemoteConsumer(source, destination, seaweed.system(), tmp_path / "taken").run()
    assert not difference(source, destination, [TableName("public", "large")])


def test_keys_that_the_configuration_names_are_used_and_never_told(seaweed: Seaweed, tmp_path: Path) -> None:
    file = tmp_path / "shop.yml"
    base = f"s3://{BUCKET}/named?{seaweed.parameters}"
    file.write_text(
        "pipeline: p\nsources: [{name: s, dsn: 'postgresql://localhost/x'}]\n"
        f"destinations: [{{name: files, type: files, base_path: '{base}', "
        "credentials: {access_key_env: ACCESS, secret_key_env: SECRET, session_token_env: TOKEN}}]\n"
    )
    keys = {"ACCESS": ACCESS_KEY, "SECRET": SECRET_KEY, "TOKEN": ""}
    for wrong in ({}, {"SECRET": "wr0ng"}):
        config = load(file, keys | wrong)
        assert config.withheld == {"ACCESS", "SECRET", "TOKEN"}
        options = config.destinations[0].settings(FilesOptions)
        storage = pickle.loads(pickle.dumps(Storage(options.base, "files", options.keys)))
        assert_no_secret([repr(config), repr(options), repr(storage), repr(options.keys)])
        if not wrong:
            assert b"".join(storage.read(storage.write("t/1/a", [b"data"]).path)) == b"data"
            continue
        with pytest.raises(StorageFailed) as refused:
            storage.write("t/1/b", [b"data"])
        assert_no_secret([str(refused.value), repr(refused.value)])
        assert "wr0ng" not in str(refused.value)
    with pytest.raises(
        ConfigError, match=r"shop\.yml:3: .*credentials.secret_key_env: expected the environment"
    ):
        load(file, {"ACCESS": ACCESS_KEY, "TOKEN": ""})
    text = file.read_text().replace(f"s3://{BUCKET}", f"s3://x:y@{BUCKET}")
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"credentials: expected s3://bucket/… without keys in it"):
        load(file, keys)


@pytest.mark.slow
def test_executors_are_handed_their_keys_with_their_tasks(
    source: Database, destination: Database, seaweed: Seaweed, tmp_path: Path
) -> None:
    """Executors in processes of their own: neither their environment nor their arguments have the keys."""
    source.execute(
        "create table large (id int primary key, text text)",
        "alter table large alter text set storage external",
        # more than the driver copies by itself
        "insert into large select i, repeat(md5(i::text), 200) from generate_series(1, 2000) i",
    )
    to_store = {
        "name": "files",
        "type": "files",
        "base_path": f"s3://{BUCKET}/by-task?{seaweed.parameters}",
        "credentials": {"access_key_env": "STORE_ACCESS", "secret_key_env": "STORE_SECRET"},
    }
    cluster = {"master": "local-cluster[1,1,1024]"}
    file = configuration(tmp_path, source, to_store, spark=cluster, copy={"partition_mb": 1})
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "run", str(file), "--once"]
    credentials = {"STORE_ACCESS": ACCESS_KEY, "STORE_SECRET": SECRET_KEY}
    seen = set()
    with (tmp_path / "out").open("w") as out:
        ran = psutil.Popen(command, env=os.environ | credentials, stdout=out, stderr=out)
        while ran.poll() is None:
            for child in ran.children(recursive=True):
                with suppress(psutil.Error, OSError):
                    at = Path(f"/proc/{child.pid}")
                    seen.add(" ".join(child.cmdline()))
                    assert_no_secret(
                        [(at / one).read_text(errors="replace") for one in ("cmdline", "environ")]
                    )
            time.sleep(0.05)
    assert ran.returncode == 0, (tmp_path / "out").read_text()
    assert any("CoarseGrainedExecutorBackend" in line for line in seen), seen
    assert_no_secret(
        [(tmp_path / "out").read_text(), (tmp_path / "spool" / "test" / "spark.log").read_text()]
    )
    RemoteConsumer(source, destination, seaweed.system(), tmp_path / "taken").run()
    assert not difference(source, destination, [TableName("public", "large")])


def test_what_is_not_finished_never_appears(seaweed: Seaweed) -> None:
    storage = Storage(seaweed.uri("half"), "files")

    def blocks() -> Iterator[bytes]:
        yield b"x" * (12 << 20)
        assert objects(seaweed, "half") == []
        yield b"x" * (12 << 20)
        raise ValueError("the source is gone")

    with pytest.raises(ValueError, match="the source is gone"):
        storage.write("t/1/a.csv", blocks())
    assert objects(seaweed, "half") == []


def test_parts_become_one_file_and_are_gone(seaweed: Seaweed) -> None:
    storage = Storage(seaweed.uri("parts"), "files")
    for number in range(3):
        storage.put(f"t/1/.parts/{number}", [b"part", str(number).encode()])
    written = storage.concatenate("t/1/all", [b"header"], [f"t/1/.parts/{number}" for number in range(3)])
    assert b"".join(storage.read(written.path)) == b"headerpart0part1part2"
    assert objects(seaweed, "parts") == ["t/", "t/1/", "t/1/all"]
    assert storage.folders("t") == ["t/1"]
    assert storage.names("t") == ["t/1/all"]
    storage.remove([written.path, "t/9/never"])
    assert objects(seaweed, "parts") == ["t/"]
    assert storage.names("t") == storage.names("other") == []


def test_no_error_tells_a_secret(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "wr0ng/s3cr3t"
    uri = seaweed.uri("x", wrong)
    session_token = f"s3://{ACCESS_KEY}:{SECRET_KEY.replace('/', '%2F')}@{BUCKET}/x?session_token=s3cr3t"
    unparsable = [f"s3://{ACCESS_KEY}:{SECRET_KEY}@{BUCKET}/x", f"{uri}&unknown=s3cr3t", f"{uri} s3cr3t"]
    for base in [*unparsable, session_token, "what://s3cr3t:s3cr3t@host/x"]:
        storage = Storage(base, "files")
        with pytest.raises(ConfigError) as refused:
            storage.claim("me", anew=True)
        assert "s3://bucket/folder" in str(refused.value)
        assert_no_secret([str(refused.value), repr(refused.value), repr(storage), repr([storage])])
    denied = Storage(uri, "files")
    missing = Storage(seaweed.uri("x").replace(f"@{BUCKET}/", "@other-bucket/"), "files")
    for storage in (denied, missing):
        attempts: list[Callable[[], object]] = [
            partial(storage.write, "t/1/a", [b"data"]),
            partial(storage.verify, Written("t/1/a", 0, "")),
            partial(storage.remove, ["t/1/a"]),
        ]
        for attempt in attempts if storage is denied else attempts[:2]:
            with pytest.raises(StorageFailed) as failed:
                attempt()
            assert failed.value.where["destination"] == "files"
            assert_no_secret([str(failed.value), repr(failed.value), str(failed.value.where)])
            assert wrong not in str(failed.value)
    leaking = OSError(f"could not open {denied.base}: key {ACCESS_KEY}, secret {wrong}")

    def fails(*_: object, **__: object) -> None:
        raise leaking

    monkeypatch.setattr("penstock.destinations.files.storage._opened", fails)
    with pytest.raises(StorageFailed) as failed:
        denied.exists("t")
    assert_no_secret([str(failed.value)])
    assert wrong not in str(failed.value)

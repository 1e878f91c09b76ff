"""Who reads the spool: what is kept for nobody is forgotten, what is kept for somebody is told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.capture.launch import spool_of
from penstock.config import load
from penstock.destinations.memory import Memory
from penstock.model import Lsn
from penstock.model.errors import PositionGone
from penstock.model.events import Insert
from penstock.model.phases import Phase
from penstock.pipeline import copier, stream
from penstock.pipeline.source_feed import SourceFeed
from penstock.postgres.connection import Connection
from penstock.postgres.exported_snapshot import settle
from penstock.spark.cdc import query_spool
from penstock.spark.cdc.options import CdcOptions
from penstock.spark.cdc.reader import SpoolReader
from penstock.spark.cdc.shapes import AllTables
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import eventually
from tests.pipeline.running import configuration, contents, running, to_postgres


@contextmanager
def captured(file: Path) -> Iterator[Manifest]:
    """The manifest of the source, while the feed of a pipeline of this configuration has it captured."""
    config = load(file)
    feed = SourceFeed(config, config.sources[0])
    try:
        feed.start(threading.Event())
        with closing(feed.open()) as manifest:
            yield manifest
    finally:
        feed.stop()


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def confirmed(database: Database) -> Lsn:
    ((found,),) = database.query(
        "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()"
    )
    return Lsn.parse(found)


def test_a_destination_that_left_the_configuration_is_forgotten_and_a_query_is_not(
    source: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id int primary key)")
    here, elsewhere = to_postgres(source), to_postgres(source, name="elsewhere")
    file = configuration(tmp_path, source, here, elsewhere)
    with captured(file) as manifest:
        begin = manifest.position
        manifest.register("elsewhere/16384", begin)
        manifest.register("copy/16384", begin)
        manifest.register("query", begin)
        eventually(lambda: {"copy", "elsewhere"} <= manifest.consumers().keys())
    file = configuration(tmp_path, source, here)
    with capture_logs() as lines, captured(file) as manifest:
        assert manifest.consumers().keys() == {"copy", "copy/16384", "query"}
        told = [line["consumer"] for line in lines if "consumer forgotten" in line["event"]]
        assert told == ["elsewhere", "elsewhere/16384"]
        source.execute("insert into t values (1)")
        eventually(lambda: manifest.position > begin)
        reached = manifest.position
        manifest.forget("query")
        for left in manifest.consumers():
            manifest.advance(left, reached)
        eventually(lambda: confirmed(source) >= reached)


@pytest.mark.slow
def test_consumers_are_told_with_what_is_kept_for_them_and_forgotten_by_command(
    source: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id int primary key)")
    ((table,),) = source.query("select 't'::regclass::oid::int8")
    file = configuration(tmp_path, source, to_postgres(source))
    with captured(file) as manifest:
        begin = manifest.position
        manifest.register("query", begin)
        manifest.register(f"copy/{table}", begin)
        source.execute("insert into t select generate_series(1, 1000)")
        eventually(lambda: manifest.files())
        manifest.advance("copy", manifest.position)
        done = penstock("consumers", file)
        assert done.returncode == 0, done.stderr
        assert f"consumer query (no destination of the configuration) at {begin}" in done.stdout
        assert "waits: public.t" in done.stdout
        assert f"consumer query (no destination of the configuration) at {begin}" in (
            penstock("status", file).stdout
        )
        (shown,) = json.loads(penstock("status", file, "--json").stdout)["sources"]
        by_name: dict[str, dict[str, Any]] = {one["name"]: one for one in shown["consumers"]}
        assert by_name["query"]["kept_bytes"] > 0
        assert by_name["copy"]["kept_bytes"] == 0
        assert {name: one["kind"] for name, one in by_name.items()} == {
            "copy": "destination",
            f"copy/{table}": "table",
            "query": "other",
        }
        refused = penstock("consumers", file, "--forget", f"copy/{table}")
        assert (refused.returncode, "Take copy out of the configuration" in refused.stderr) == (1, True)
        unknown = penstock("consumers", file, "--forget", "nobody")
        assert (unknown.returncode, f"There are: copy, copy/{table}, query" in unknown.stderr) == (1, True)
        done = penstock("consumers", file, "--forget", "query")
        assert (done.returncode, done.stdout) == (0, "source: query is forgotten\n")
        assert manifest.consumers().keys() == {"copy", f"copy/{table}"}


def test_a_query_that_fails_its_own_check_is_no_consumer(source: Database, tmp_path: Path) -> None:
    source.execute("create table t (id int primary key)")
    file = configuration(tmp_path, source, to_postgres(source))
    with captured(file) as manifest:
        options = {"config": str(file), "consumer": "query", "startingPosition": "0/1"}
        reader = SpoolReader(CdcOptions.read(options), AllTables(), None)
        reader._open = manifest
        with pytest.raises(PositionGone):
            reader.initialOffset()
        assert "query" not in manifest.consumers()
    config = load(file)
    configured = query_spool.QuerySpool(CdcOptions.read(options))._configured
    assert configured is not None
    assert configured[1].consumers == ("copy",)
    assert configured[1].spool == spool_of(config, config.sources[0])


def test_nothing_is_kept_for_a_table_that_was_removed_when_its_copy_began(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.execute("create table t (id int primary key)")
    may_copy = threading.Event()

    def settle_when_allowed(connection: Connection) -> None:
        may_copy.wait()
        settle(connection)

    monkeypatch.setattr(copier, "settle", settle_when_allowed)
    monkeypatch.setattr(stream, "TOLD", 1000.0)
    with running(configuration(tmp_path, source, to_postgres(destination)), spark) as pipeline:
        pipeline.until(lambda: len(pipeline.tables()) == 1)
        spool = spool_of(pipeline.config, pipeline.config.sources[0])
        with closing(Manifest.open(spool)) as manifest:
            (held,) = manifest.consumers().keys() - {"copy"}
            source.execute("drop table t")
            pipeline.until(lambda: not pipeline.tables() and held not in manifest.consumers())
            may_copy.set()
            pipeline.until(lambda: held in manifest.consumers())
            monkeypatch.setattr(stream, "TOLD", 0.1)
            pipeline.until(lambda: held not in manifest.consumers())


def test_a_destination_that_comes_back_is_given_what_came_meanwhile(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """It keeps no position of its own, and the spool has it for somebody else's sake."""
    source.execute("create table t (id int primary key)")
    key = tmp_path.name
    memory = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory"}
    both = to_postgres(destination), memory | {"options": {"key": key}}
    with running(configuration(tmp_path, source, *both), spark) as pipeline:
        pipeline.until(lambda: [s.phase for s in pipeline.states()] == [Phase.READY, Phase.READY])
        source.execute("insert into t values (1)")
        pipeline.until(lambda: _inserted(key) == ["1"])
        with closing(Manifest.open(spool_of(pipeline.config, pipeline.config.sources[0]))) as manifest:
            manifest.register("slow", manifest.retired)
    with running(configuration(tmp_path, source, to_postgres(destination)), spark) as pipeline:
        source.execute("insert into t values (2)")
        pipeline.until(lambda: contents(destination, "t") == ["(1)", "(2)"])
    with running(configuration(tmp_path, source, *both), spark) as pipeline:
        source.execute("insert into t values (3)")
        pipeline.until(lambda: "3" in _inserted(key))
        assert _inserted(key)[-2:] == ["2", "3"]


def _inserted(key: str) -> list[str | None]:
    events = list(Memory.of(key).events)
    return [event.table_row[0] for event in events if isinstance(event, Insert) and event.table_row]

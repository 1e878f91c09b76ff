"""A spool is one slot's: another's is never taken for it, moved or removed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.capture import launch
from penstock.capture.spool_identity import find, identify, own
from penstock.config import Config, load
from penstock.model import Lsn
from penstock.model.errors import SlotLost, SpoolInUse, WrongSpool
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.teardown import remove
from penstock.spool import manifest
from penstock.spool.identity import Identity, identity_of, spool_exists
from penstock.spool.manifest import Manifest
from penstock.spool.writer import SpoolWriter
from tests.bed import Database
from tests.capture.running import Running, spec_for

CHECK = [sys.executable, "-c", "from penstock.cli import main; main()", "check", "--json"]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("create table t (id int primary key)", "create publication p for table t")
    return database


def written(folder: Path, database: Database, pipeline: str = "shop", source: str = "eu") -> Path:
    document: dict[str, Any] = {
        "pipeline": pipeline,
        "sources": [
            {
                "name": source,
                "dsn": database.dsn,
                "replication": {"on_slot_lost": "resync"},
                "ddl_capture": "off",
            }
        ],
        "spool": {"path": str(folder / "spool")},
        "state": {"url": f"sqlite:///{folder}/{pipeline}.db"},
    }
    file = folder / f"{pipeline}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def everything(folder: Path) -> dict[str, bytes]:
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith("-shm")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def another(config: Config, what: str) -> Identity:
    ours = identify(launch.spec_of(config, config.sources[0]))
    return {
        "system": Identity("7000000000000000001", ours.database, ours.slot),
        "database": Identity(ours.system_id, "other", ours.slot),
        "slot": Identity(ours.system_id, ours.database, "other"),
    }[what]


@pytest.mark.parametrize("what", ["system", "database", "slot"])
@pytest.mark.parametrize("slot", ["missing", "there", "moved on"])
def test_capture_asks_whose_spool_it_is_before_anything_about_the_slot(
    shop: Database, tmp_path: Path, what: str, slot: str
) -> None:
    spec = spec_for(shop, tmp_path / "spool")
    theirs = another(load(written(tmp_path, shop)), what)
    if what != "slot":
        theirs = Identity(theirs.system_id, theirs.database, spec.slot)
    Manifest.create(spec.spool, theirs, Lsn(1)).close()
    if slot != "missing":
        shop.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", spec.slot)
    if slot == "moved on":
        shop.query("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", spec.slot)
    capture = Running(spec)
    try:
        error = capture.fail()
    finally:
        capture.stop()
    if what == "system":  # another server under the same names: what was read from the first is lost
        assert isinstance(error, SlotLost), error
        assert f"we had read from system {theirs.system_id}" in str(error)
    else:
        assert isinstance(error, WrongSpool), error
        assert f"belongs to {theirs}" in str(error)
    assert identity_of(spec.spool) == theirs


@pytest.mark.parametrize("what", ["database", "slot"])
def test_resync_leaves_another_s_spool_and_the_slot_alone(shop: Database, tmp_path: Path, what: str) -> None:
    file = written(tmp_path, shop)
    config = load(file)
    spec = launch.spec_of(config, config.sources[0])
    shop.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", spec.slot)
    with closing(SpoolWriter(spec.spool, another(config, what), Lsn(1))):
        pass
    before = everything(spec.spool)
    feed = SourceFeed(config, config.sources[0])
    with pytest.raises(WrongSpool):
        feed.start(threading.Event())
    # As if the slot had been lost while it ran, and the spool been exchanged since.
    feed.lost = SlotLost("the slot does not exist")
    feed.start_over()
    with pytest.raises(WrongSpool):
        feed.look_after()
    feed.stop()
    assert everything(spec.spool) == before
    assert shop.query("select 1 from pg_replication_slots where slot_name = %s", spec.slot)
    done = subprocess.run([*CHECK, str(file)], capture_output=True, text=True, check=False)
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    told = {(one["name"], one["outcome"]): one["detail"] for one in checks if one.get("source") == "eu"}
    assert "belongs to slot" in told["spool", "failure"]
    assert ("slot", "failure") not in told
    assert any(f"left spool {spec.spool}" in line for line in remove(config))
    assert everything(spec.spool) == before


def test_two_pipelines_in_one_folder_have_a_spool_each(shop: Database, tmp_path: Path) -> None:
    """Each has a source of the same name."""
    feeds = []
    for name in ("one", "two"):
        config = load(written(tmp_path, shop, pipeline=name))
        feeds.append(SourceFeed(config, config.sources[0]))
    try:
        for feed in feeds:
            feed.start(threading.Event())
        assert [feed.spec.spool for feed in feeds] == [tmp_path / "spool" / n / "eu" for n in ("one", "two")]
        slots = [identity_of(feed.spec.spool) for feed in feeds]
        assert [found and found.slot for found in slots] == ["penstock_one_eu", "penstock_two_eu"]
    finally:
        for feed in feeds:
            feed.stop()


# The spool of an earlier version


def given_former(config: Config, theirs: Identity | None = None) -> Path:
    spec = launch.spec_of(config, config.sources[0])
    assert spec.former_spool is not None
    Manifest.create(spec.former_spool, theirs or identify(spec), Lsn(42)).close()
    (spec.former_spool / "000000000001.arrow").write_text("a segment")
    return spec.former_spool


@pytest.mark.parametrize("source", ["eu", "shop"], ids=["beside", "in the pipeline's place"])
def test_the_spool_of_an_earlier_version_is_moved_to_its_place(
    shop: Database, tmp_path: Path, source: str
) -> None:
    config = load(written(tmp_path, shop, source=source))
    spec = launch.spec_of(config, config.sources[0])
    former = given_former(config)
    assert find(spec) == former
    with closing(SpoolWriter(former, identify(spec), Lsn(42))), pytest.raises(SpoolInUse):
        own(spec)
    assert manifest.position(former) == Lsn(42), "left alone while somebody captures into it"
    own(spec)
    assert find(spec) == spec.spool == tmp_path / "spool" / "shop" / source
    assert manifest.position(spec.spool) == Lsn(42)
    assert not spool_exists(former)
    assert spec.spool.stat().st_mode & 0o777 == spec.spool.parent.stat().st_mode & 0o777 == 0o700
    own(spec)
    assert manifest.position(spec.spool) == Lsn(42)


def test_a_crash_half_way_of_the_move_loses_nothing(shop: Database, tmp_path: Path) -> None:
    config = load(written(tmp_path, shop, source="shop"))
    spec = launch.spec_of(config, config.sources[0])
    given_former(config).rename(tmp_path / "spool" / ".shop.moved")
    own(spec)
    assert manifest.position(spec.spool) == Lsn(42)


def test_another_s_spool_of_an_earlier_version_is_left_alone(shop: Database, tmp_path: Path) -> None:
    config = load(written(tmp_path, shop))
    spec = launch.spec_of(config, config.sources[0])
    former = given_former(config, another(config, "slot"))
    before = everything(former)
    own(spec)
    assert everything(former) == before
    assert not spool_exists(spec.spool)
    # A pipeline that is called as that source is would make its own folders in the other's spool.
    other = load(written(tmp_path, shop, pipeline="eu", source="us"))
    with pytest.raises(WrongSpool, match="the pipeline's folder is itself a spool"):
        own(launch.spec_of(other, other.sources[0]))
    assert everything(former) == before

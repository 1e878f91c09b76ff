"""A server that went back: restored from a backup, promoted while it lagged; or another one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model import Lsn, Reached
from penstock.model.errors import SlotLost
from penstock.postgres.timeline import Server, departure, parse
from penstock.spool import manifest
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import captured, eventually, running, spec_for
from tests.capture.standby import backup_of, promote, put_back, standby_of

HISTORY = b"""1\t0/A000198\tno recovery target specified

# a comment
2\t0/B000000\tbefore 2026-11-16 "at 3\t0/FF"
"""


@pytest.fixture
def source(own_database: Database) -> Database:
    own_database.execute("create table t (id int primary key, v text)", "create publication p for table t")
    return own_database


def ids(spool: Path) -> list[int]:
    return [int(change.after[0] or 0) for change in captured(spool) if change.after]


def fill(database: Database, first: int, last: int) -> None:
    database.execute(f"insert into t select g, repeat('x', 500) from generate_series({first}, {last}) g")


def test_a_history_says_where_each_timeline_was_left() -> None:
    assert parse(HISTORY) == {1: Lsn(0xA000198), 2: Lsn(0xB000000)}


@pytest.mark.parametrize(
    ("position", "timeline", "why"),
    [
        (0xA000198, 1, None),
        (0xA000199, 1, "left timeline 1 at 0/A000198"),
        (0xB000000, 2, None),
        (0xB000001, 2, "left timeline 2 at 0/B000000"),
        (0xC000000, 3, None),
        (0xC000001, 3, "WAL ends at 0/C000000"),
        (0xA000000, 4, "never was on 4"),
        (0xC000000, None, None),
        (0xC000001, None, "WAL ends at 0/C000000"),
    ],
)
def test_a_position_belongs_to_a_history_or_does_not(
    position: int, timeline: int | None, why: str | None
) -> None:
    server = Server("7", 3, Lsn(0xC000000), "shop")
    reason = departure(Reached(Lsn(position), timeline, "7"), server, parse(HISTORY))
    assert reason is None if why is None else why in (reason or "")
    assert "another server" in (departure(Reached(Lsn(1), 3, "8"), server, {}) or "")


def test_a_server_put_back_from_a_backup_is_a_lost_slot(source: Database, tmp_path: Path) -> None:
    """Its slot is there, and older than the spool: the server would skip what commits up to there."""
    spec = spec_for(source, tmp_path)
    with running(spec) as capture:
        fill(source, 1, 10)
        capture.until_past(source)
    source.server.stop()
    with backup_of(source.server) as kept:
        source.server.start()
        with running(spec) as capture:
            fill(source, 11, 3000)
            capture.until_past(source)
            # While it runs: the capture only loses its connection, and finds the server changed.
            source.server.stop()
            put_back(source.server, kept)
            source.server.start()
            error = capture.fail()
        assert isinstance(error, SlotLost)
        assert "WAL ends at" in str(error)
        assert "on_slot_lost: resync" in str(error)
    with running(spec) as capture:
        assert isinstance(capture.fail(), SlotLost)
    assert len(ids(tmp_path)) == 3000, "nothing was added"


def test_a_standby_that_lagged_when_it_was_promoted_is_a_lost_slot(source: Database, tmp_path: Path) -> None:
    spec = spec_for(source, tmp_path)
    with standby_of(source.server) as standby:
        promoted = Database(standby, source.name)
        with running(spec) as capture:
            fill(source, 1, 10)
            capture.until_past(source)
            eventually(lambda: promoted.query("select count(*) from t") == [(10,)])
            standby.stop()
            fill(source, 11, 3000)
            capture.until_past(source)
        (source.server.data / "pg_hba.conf").write_text("")
        source.server.stop("immediate")
        standby.start()
        # The address leads to the standby before it is promoted: it may still come to where we are.
        there = replace(spec, conninfo=promoted.dsn)
        with running(there) as capture:
            told = capture.until_state("retrying")
            assert told["error"]["kind"] == "ConnectionFailed"
            assert "is a standby" in told["error"]["reason"]
        promote(standby)
        promoted.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", spec.slot)
        fill(promoted, 100_001, 104_000)  # its WAL is longer now than what we had read
        with running(there) as capture:
            error = capture.fail()
        assert isinstance(error, SlotLost)
        assert "left timeline 1" in str(error)
    assert len(ids(tmp_path)) == 3000


def test_a_standby_that_had_everything_is_followed_after_its_promotion(
    source: Database, tmp_path: Path
) -> None:
    with source.connect() as connection:
        if connection.info.server_version < 170000:
            pytest.skip("failover slots came with PostgreSQL 17")
    spec = spec_for(source, tmp_path, failover=True)
    with standby_of(source.server, sync_replication_slots="on") as standby:
        promoted = Database(standby, source.name)
        with running(spec) as capture:
            fill(source, 1, 10)
            capture.until_past(source)

            def is_synced() -> bool:
                source.execute("select pg_log_standby_snapshot()")
                capture.until_past(source)
                return promoted.query(
                    "select 1 from pg_replication_slots where slot_name = %s and synced and not temporary",
                    spec.slot,
                ) == [(1,)]

            eventually(is_synced)
        source.server.stop()  # in good order: the standby has it all
        promote(standby)
        with running(replace(spec, conninfo=promoted.dsn)) as capture:
            fill(promoted, 11, 20)
            capture.until_past(promoted)
    assert ids(tmp_path) == list(range(1, 21))
    with closing(Manifest.open(tmp_path)) as opened:
        assert opened.timeline == 2


def test_another_server_is_a_lost_slot(source: Database, tmp_path: Path) -> None:
    """As after a dump and restore, or pg_upgrade: database and slot are called as before."""
    spec = spec_for(source, tmp_path)
    with running(spec) as capture:
        capture.until_past(source)
    found = manifest.reached(tmp_path)
    assert found is not None
    with closing(Manifest.open(tmp_path)) as opened, opened.transaction() as database:
        database.execute("update meta set value = '7000000000000000001' where key = 'system_id'")
    with running(spec) as capture:
        error = capture.fail()
    assert isinstance(error, SlotLost)
    assert f"read from system 7000000000000000001, it is {found.system_id}" in str(error)

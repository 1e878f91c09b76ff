"""Connections that go silent, standbys that are not promoted yet, captures that take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from structlog.testing import capture_logs

from penstock.capture import receiver
from penstock.capture.process import Capture
from penstock.capture.receiver import Receiver
from penstock.embedded.postgres import PostgresServer
from penstock.model import ZERO
from penstock.model.errors import SlotLost
from penstock.postgres import slot
from penstock.postgres.connection import Connection, replication_conninfo, with_session
from penstock.postgres.slot import SlotState
from penstock.spool import manifest
from tests.bed import Database
from tests.capture.blackhole import proxy
from tests.capture.running import captured, eventually, running, spec_for
from tests.capture.standby import standby_of

NUMBERS = "create table numbers (n int primary key); create publication p for table numbers"


@pytest.fixture
def source(database: Database) -> Database:
    database.execute(NUMBERS)
    return database


def numbers(spool: Path) -> list[str | None]:
    return [change.after[0] for change in captured(spool) if change.after]


def test_a_connection_that_goes_silent_is_given_up_and_one_that_is_idle_is_not(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ASK", 0.2)
    monkeypatch.setattr(receiver, "SILENCE", 1.5)
    walsender = "select active_pid from pg_replication_slots where active and database = current_database()"
    with capture_logs() as lines, proxy(source.server.port) as between:
        conninfo = make_conninfo(source.dsn, port=between.port, options="-c wal_sender_timeout=0")
        with running(spec_for(source, tmp_path, conninfo=conninfo)) as capture:
            ((first,),) = eventually(lambda: source.query(walsender))
            time.sleep(3)
            assert source.query(walsender) == [(first,)], "an idle connection was given up"
            between.go_silent()
            source.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where active")
            source.execute("insert into numbers values (1)")
            capture.until_past(source)
    assert numbers(tmp_path) == ["1"]
    assert any("has been silent" in line.get("error", "") for line in lines)


def test_who_was_silent_for_long_is_given_longer_the_next_time(source: Database, tmp_path: Path) -> None:
    """Over one large transaction of tables that nobody follows a server may be silent each time."""
    spec = spec_for(source, tmp_path)
    with running(spec) as capture:
        capture.until_past(source)
    capture_of = Capture(spec, threading.Event())
    with Receiver(replication_conninfo(spec.conninfo)) as connected:
        position = capture_of._find_position(connected)
        assert position is not None
        capture_of._silence = (position, 60.0)
        capture_of._be_patient(connected, position)
        assert connected.patience == 120


def test_every_connection_is_watched_by_tcp_unless_the_user_says_otherwise() -> None:
    given = conninfo_to_dict(with_session("host=db keepalives_idle=7"))
    assert given["keepalives_idle"] == "7"
    assert given["tcp_user_timeout"] == "60000"
    assert conninfo_to_dict(with_session("host=db tcp_user_timeout=0"))["tcp_user_timeout"] == "0"


@pytest.fixture
def standby(own_server: PostgresServer) -> Iterator[PostgresServer]:
    """Of `own_server`, following it, with its failover slots where the version has them."""
    settings = {"sync_replication_slots": "on"} if version(own_server) >= 170000 else {}
    with standby_of(own_server, **settings) as standby:
        yield standby


def test_a_failover_slot_is_read_once_the_standby_is_promoted(
    own_database: Database, standby: PostgresServer, tmp_path: Path
) -> None:
    if version(own_database.server) < 170000:
        pytest.skip("failover slots came with PostgreSQL 17")
    own_database.execute(NUMBERS)
    promoted = Database(standby, own_database.name)
    spec = spec_for(own_database, tmp_path, failover=True)
    count = 0
    with running(spec) as capture:
        while not promoted.query("select 1 from pg_replication_slots where synced and not temporary"):
            count += 1
            own_database.execute(f"insert into numbers values ({count})", "select pg_log_standby_snapshot()")
            capture.until_past(own_database)
    eventually(lambda: promoted.query(f"select 1 from numbers where n = {count}"))
    with running(spec_for(own_database, tmp_path, conninfo=promoted.dsn)) as capture:
        assert capture.until_state("retrying")["error"]["kind"] == "NotPromoted"
        own_database.server.stop("fast")  # when the standby has all of it
        standby._run("pg_ctl", "-D", standby.data, "-w", "promote")
        capture.until_state("streaming")
        promoted.execute(f"insert into numbers values ({count + 1})")
        capture.until_past(promoted)
    assert numbers(tmp_path) == [str(number) for number in range(1, count + 2)]


def version(server: PostgresServer) -> int:
    with psycopg.connect(server.dsn()) as connection:
        return connection.info.server_version


def test_a_standby_before_its_promotion_is_waited_for_and_no_lost_slot(
    own_database: Database, standby: PostgresServer, tmp_path: Path
) -> None:
    own_database.execute(NUMBERS)
    spec = spec_for(own_database, tmp_path)
    with running(spec) as capture:
        own_database.execute("insert into numbers values (1)")
        capture.until_past(own_database)
    eventually(lambda: Database(standby, own_database.name).query("select 1 from numbers"))
    with running(spec_for(own_database, tmp_path, conninfo=standby.dsn(own_database.name))) as capture:
        reported = capture.until_state("retrying")
        assert reported["error"]["kind"] == "NotPromoted"
        own_database.server.stop("immediate")
        standby._run("pg_ctl", "-D", standby.data, "-w", "promote")
        assert isinstance(capture.fail(), SlotLost)  # this one is lost in truth: it was not synchronized


def test_a_capture_that_waits_its_turn_does_not_take_the_slot_for_lost(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who captures goes on between the looks at the spool's position and at the slot's."""
    spec = spec_for(source, tmp_path)
    second = Capture(spec, threading.Event())
    describe = slot.describe

    def described_after_a_while(connection: Connection, name: str) -> SlotState | None:
        spooled = manifest.position(tmp_path) or ZERO
        source.execute("insert into numbers select coalesce(max(n), 0) + 1 from numbers")
        while True:
            state = describe(connection, name)
            if state is None or (state.confirmed_flush or ZERO) > spooled:
                return state
            time.sleep(0.05)

    with running(spec) as capture, Receiver(replication_conninfo(spec.conninfo)) as connected:
        capture.until_past(source)
        monkeypatch.setattr(slot, "describe", described_after_a_while)
        assert second._find_position(connected)

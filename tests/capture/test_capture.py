"""A capture against a real server: what arrives, what is acknowledged, what happens when things break."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from penstock.capture.heartbeat import beat
from penstock.capture.worker import Worker
from penstock.model import Lsn
from penstock.model.backoff import Backoff
from penstock.model.errors import PublicationMissing, SlotLost
from penstock.postgres.connection import connect
from penstock.spool import manifest
from penstock.spool.manifest import Manifest
from penstock.spool.segment import BeforeKind, Op
from tests.bed import Database
from tests.capture.running import PEOPLE, captured, eventually, running, spec_for


@pytest.fixture
def own_source(own_database: Database) -> Database:
    own_database.execute(PEOPLE)
    return own_database


def confirmed(database: Database) -> Lsn:
    ((found,),) = database.query(
        "select confirmed_flush_lsn::text from pg_replication_slots where database = current_database()"
    )
    return Lsn.parse(found)


def names(spool: Path) -> list[str | None]:
    return [change.after[1] for change in captured(spool) if change.after]


def test_what_commits_arrives_in_order_with_its_values(source: Database, tmp_path: Path) -> None:
    with running(spec_for(source, tmp_path)) as capture:
        source.execute(
            "insert into people values (1, 'Ada', null), (2, '', 'x')",
            "update people set name = 'Grace' where id = 1; update people set id = 3 where id = 2",
            "delete from people where id = 3",
            "truncate people restart identity cascade",
            "begin; insert into people values (9, 'nobody', null); rollback",
        )
        capture.until_past(source)
    found = captured(tmp_path)
    assert [(c.op, c.before_kind, c.before, c.after) for c in found] == [
        (Op.INSERT, BeforeKind.NONE, None, ("1", "Ada", None)),
        (Op.INSERT, BeforeKind.NONE, None, ("2", "", "x")),
        (Op.UPDATE, BeforeKind.NONE, None, ("1", "Grace", None)),
        (Op.UPDATE, BeforeKind.KEY, ("2", None, None), ("3", "", "x")),
        (Op.DELETE, BeforeKind.KEY, ("3", None, None), None),
        (Op.TRUNCATE, BeforeKind.NONE, None, ("cascade", "restart identity")),
    ]
    places = [(c.commit_lsn, c.seq) for c in found]
    assert places == sorted(set(places))
    assert [c.seq for c in found] == [0, 1, 0, 1, 0, 0]


def test_a_restart_goes_on_where_it_stopped(source: Database, tmp_path: Path) -> None:
    spec = spec_for(source, tmp_path)
    for number in range(3):
        with running(spec) as capture:
            source.execute(f"insert into people values ({number}, 'n{number}')")
            capture.until_past(source)
        source.execute(f"insert into people values ({number + 10}, 'between{number}')")
    with running(spec) as capture:
        capture.until_past(source)
    assert names(tmp_path) == ["n0", "between0", "n1", "between1", "n2", "between2"]


def test_the_slot_follows_the_slowest_consumer(source: Database, tmp_path: Path) -> None:
    spec = spec_for(source, tmp_path, ack="destination", consumers=("fast", "slow"))
    with running(spec) as capture:
        begin = confirmed(source)
        source.execute("insert into people values (1)")
        capture.until_past(source)
        with closing(Manifest.open(tmp_path)) as opened:
            reached = opened.position  # it moves on by itself now and then: the server logs what runs
            opened.advance("fast", reached)
            time.sleep(2.5)
            assert confirmed(source) == begin
            opened.advance("slow", reached)
            eventually(lambda: confirmed(source) >= reached)
            eventually(lambda: opened.files() == set())


def test_an_idle_table_does_not_pin_the_wal(source: Database, tmp_path: Path) -> None:
    source.execute("create table unpublished (x text)")
    with running(spec_for(source, tmp_path)):
        source.execute("insert into unpublished select repeat('x', 1000) from generate_series(1, 1000)")
        ((now,),) = source.query("select pg_current_wal_lsn()::text")
        eventually(lambda: confirmed(source) >= Lsn.parse(now))


def test_an_idle_server_stays_idle(source: Database) -> None:
    """Behind every beat the server tells by itself who is running, as it does after a checkpoint."""
    with connect(source.dsn) as connection:
        first = beat(connection, None)
        assert first is not None
        connection.execute("checkpoint")
        assert beat(connection, first) == first
        connection.execute("create table public.unpublished as select generate_series(1, 5000)")
        second = beat(connection, first)
        assert second not in (None, first)
        assert beat(connection, second) == second


def test_a_heartbeat_is_written_when_the_wal_has_grown(source: Database, tmp_path: Path) -> None:
    source.execute("select pg_create_logical_replication_slot('witness', 'pgoutput')")

    def beats() -> int:
        ((found,),) = source.query(
            """select count(*) from pg_logical_slot_peek_binary_changes('witness', null, null,
                   'proto_version', '1', 'publication_names', 'p', 'messages', 'true')
                where position('penstock.heartbeat'::bytea in data) > 0"""
        )
        return int(found)

    with running(spec_for(source, tmp_path, heartbeat=0.1)):
        source.execute("create table unpublished as select 1 as x")
        before = eventually(beats)
        source.execute("insert into unpublished select generate_series(1, 5000)")
        eventually(lambda: beats() > before)
        assert captured(tmp_path) == []


def test_a_lost_connection_is_taken_up_again(source: Database, tmp_path: Path) -> None:
    with running(spec_for(source, tmp_path)) as capture:
        for number in range(3):
            source.execute(f"insert into people values ({number}, 'n{number}')")
            source.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where active_pid is not null and database = current_database()"
            )
        capture.until_past(source)
    assert names(tmp_path) == ["n0", "n1", "n2"]


def test_pauses_grow_and_start_over_after_a_success() -> None:
    backoff = Backoff(1, 8)
    pauses = [backoff.pause() for _ in range(6)]
    for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.8 * most <= pause <= most
    backoff.reset()
    assert backoff.pause() <= 1


def test_a_missing_slot_is_a_loss_once_there_is_a_spool(source: Database, tmp_path: Path) -> None:
    spec = spec_for(source, tmp_path)
    with running(spec):
        pass
    source.execute(f"select pg_drop_replication_slot('{spec.slot}')")
    with running(spec) as capture:
        error = capture.fail()
    assert isinstance(error, SlotLost)
    assert "does not exist" in str(error)
    assert "on_slot_lost: resync" in str(error)


def test_a_slot_that_somebody_moved_on_is_a_loss(source: Database, tmp_path: Path) -> None:
    spec = spec_for(source, tmp_path)
    with running(spec) as capture:
        capture.until_past(source)
    source.execute("insert into people values (1)")
    source.execute(f"select pg_replication_slot_advance('{spec.slot}', pg_current_wal_lsn())")
    with running(spec) as capture:
        error = capture.fail()
    assert isinstance(error, SlotLost)
    assert "moved on" in str(error)


def test_a_slot_in_use_is_waited_for(source: Database, tmp_path: Path) -> None:
    first, second = (spec_for(source, tmp_path / name) for name in ("first", "second"))
    with running(first):
        eventually(
            lambda: source.query(
                "select 1 from pg_replication_slots where active and database = current_database()"
            )
        )
        with running(second) as capture:
            told = capture.until_state("retrying")
            assert told["error"]["kind"] == "SlotInUse"
            assert "is active for PID" in told["error"]["reason"]
    with running(second) as capture:
        capture.until_state("streaming")


def test_a_server_shuts_down_promptly_though_a_consumer_lags(own_source: Database, tmp_path: Path) -> None:
    server = own_source.server
    with running(spec_for(own_source, tmp_path, ack="destination", consumers=("slow",))) as capture:
        own_source.execute("insert into people select g, 'n' || g from generate_series(1, 1000) g")
        capture.until_past(own_source)
        server.stop("fast")  # raises if it takes more than pg_ctl's 60 seconds
        told = capture.until_state("retrying")
        assert told["error"]["kind"] == "ConnectionFailed"
        server.start()
        own_source.execute("insert into people values (0, 'after')")
        capture.until_past(own_source)
    assert names(tmp_path) == [*(f"n{g}" for g in range(1, 1001)), "after"]


def test_a_killed_server_is_followed_again(own_source: Database, tmp_path: Path) -> None:
    with running(spec_for(own_source, tmp_path)) as capture:
        for number in range(3):
            own_source.execute(f"insert into people values ({number}, 'n{number}')")
            own_source.server.kill()
            capture.until_state("retrying", "starting")
            own_source.server.start()
        capture.until_past(own_source)
    assert names(tmp_path) == ["n0", "n1", "n2"]


def test_wal_removed_by_max_slot_wal_keep_size_is_a_loss(own_source: Database, tmp_path: Path) -> None:
    spec = spec_for(own_source, tmp_path)
    with running(spec) as capture:
        capture.until_past(own_source)
    own_source.execute("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    own_source.execute("insert into people values (1, 'lost')")
    own_source.execute("create table filler (x text)")
    for _ in range(4):
        own_source.execute("insert into filler select repeat('x', 1000) from generate_series(1, 20000)")
        own_source.execute("select pg_switch_wal()", "checkpoint")
    with running(spec) as capture:
        error = capture.fail()
    assert isinstance(error, SlotLost)
    assert "max_slot_wal_keep_size" in str(error)


def test_a_publication_that_goes_away_stops_the_capture(source: Database, tmp_path: Path) -> None:
    with running(spec_for(source, tmp_path)) as capture:
        source.execute("insert into people values (1, 'kept')")
        capture.until_past(source)
        source.execute("drop publication p", "insert into people values (2, 'unpublished')")
        error = capture.fail()
    assert isinstance(error, PublicationMissing)
    assert names(tmp_path) == ["kept"]


def test_a_transaction_that_begins_where_a_message_ends_is_not_lost(source: Database, tmp_path: Path) -> None:
    """The server gives the end of an immediate message's record; a commit may stand exactly there."""
    spec = spec_for(source, tmp_path)
    with source.connect() as writer:
        with running(spec) as capture:
            capture.until_past(source)
            writer.execute("begin")
            writer.execute("insert into people values (1, 'kept')")
            if writer.info.server_version < 170000:
                pytest.skip("before 17 nothing flushes a message without writing to the WAL after it")
            told = writer.execute(
                "select pg_logical_emit_message(false, 'note', 'x', flush => true)::text"
            ).fetchone()
            assert told is not None
            eventually(lambda: (manifest.position(tmp_path) or Lsn(0)) >= Lsn.parse(told[0]))
        writer.execute("commit")
    with running(spec) as capture:
        capture.until_past(source)
    assert [change.after for change in captured(tmp_path)] == [
        ("note", "immediate", "\\x78"),
        ("1", "kept", None),
    ]


def test_without_a_publication_no_slot_is_made(database: Database, tmp_path: Path) -> None:
    with running(spec_for(database, tmp_path)) as capture:
        error = capture.fail()
    assert isinstance(error, PublicationMissing)
    assert "the publication p does not exist" in str(error)
    assert database.query("select 1 from pg_replication_slots where database = current_database()") == []


@pytest.mark.parametrize("streaming", [True, False])
def test_a_large_transaction_arrives_without_what_was_rolled_back(
    source: Database, tmp_path: Path, streaming: bool
) -> None:
    conninfo = psycopg.conninfo.make_conninfo(source.dsn, options="-c logical_decoding_work_mem=64kB")
    with running(spec_for(source, tmp_path, conninfo=conninfo, streaming=streaming)) as capture:
        with source.connect() as writer, source.connect() as other:
            with writer.transaction():
                writer.execute("insert into people select g, 'kept' from generate_series(1, 3000) g")
                with writer.transaction():
                    writer.execute("insert into people select g, 'gone' from generate_series(3001, 6000) g")
                    other.execute("insert into people values (-1, 'other')")
                    raise psycopg.Rollback
                writer.execute("insert into people select g, 'kept' from generate_series(6001, 9000) g")
                time.sleep(0.3)
            with writer.transaction():
                writer.execute("insert into people select g, 'gone' from generate_series(10001, 14000) g")
                raise psycopg.Rollback
        capture.until_past(source)
    found = captured(tmp_path)
    assert found[0].after == ("-1", "other", None)
    assert [c.after for c in found[1:]] == [
        (str(g), "kept", None) for g in [*range(1, 3001), *range(6001, 9001)]
    ]
    assert [c.seq for c in found[1:]] == list(range(6000))
    assert len({(c.commit_lsn, c.xid) for c in found[1:]}) == 1
    assert not list((tmp_path / "spill").glob("*"))


def test_feedback_goes_on_while_the_capture_is_paused(
    own_source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would drop a receiver that is silent for wal_sender_timeout."""
    own_source.execute("alter system set wal_sender_timeout = '2s'", "select pg_reload_conf()")
    monkeypatch.setattr(Worker, "has_room", property(lambda _: time.monotonic() > until))
    until = time.monotonic() + 6
    with running(spec_for(own_source, tmp_path)) as capture:
        ((walsender,),) = eventually(
            lambda: own_source.query("select active_pid from pg_replication_slots where active")
        )
        own_source.execute("insert into people select g, repeat('x', 500) from generate_series(1, 20000) g")
        capture.until_past(own_source)
        assert own_source.query("select active_pid from pg_replication_slots") == [(walsender,)]


def test_a_temporary_slot_leaves_nothing_behind(source: Database, tmp_path: Path) -> None:
    spec = replace(spec_for(source, tmp_path), temporary_slot=True)
    with running(spec) as capture:
        source.execute("insert into people values (1, 'seen')")
        capture.until_past(source)
    assert names(tmp_path) == ["seen"]
    assert source.query("select * from pg_replication_slots where database = current_database()") == []

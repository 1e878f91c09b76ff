"""Why the server refuses or ends the stream: by states and the catalog, never by its words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock.capture.diagnosis import ATTEMPTS, Diagnosis
from penstock.capture.receiver import Receiver
from penstock.model import ZERO, Lsn
from penstock.model.errors import (
    ConnectionFailed,
    DecodingFailed,
    PublicationMissing,
    SlotLost,
    from_dict,
    to_dict,
)
from penstock.postgres.connection import replication_conninfo
from tests.bed import Database
from tests.capture.running import captured, eventually, running, spec_for


@pytest.fixture
def quiet(database: Database) -> Iterator[str]:
    """The database for a role that is told nothing but errors."""
    role = f"quiet_{database.name}"
    database.execute(
        f"create role {role} login superuser",
        f"alter role {role} set client_min_messages = error",
        "create table t (id int primary key)",
        "create publication p for table t",
    )
    yield make_conninfo(database.dsn, user=role)
    database.execute(f"drop role {role}")


def test_a_publication_that_vanished_is_missed_by_a_role_that_hears_no_warnings(
    database: Database, quiet: str, tmp_path: Path
) -> None:
    with running(spec_for(database, tmp_path, conninfo=quiet)) as capture:
        database.execute("insert into t values (1)")
        capture.until_past(database)
        database.execute("drop publication p", "insert into t values (2)")
        assert isinstance(capture.fail(), PublicationMissing)
    assert [change.after for change in captured(tmp_path)] == [("1",)]


def test_a_publication_that_was_made_again_does_not_have_what_was_written_without_it(
    database: Database, quiet: str, tmp_path: Path
) -> None:
    """The server looks at the catalog as it was then: there is no going on, and nothing to be created."""
    spec = spec_for(database, tmp_path, conninfo=quiet)
    with running(spec) as capture:
        database.execute("insert into t values (1)")
        capture.until_past(database)
    database.execute("drop publication p", "insert into t values (2)")
    database.execute("create publication p for table t", "insert into t values (3)")
    with running(spec) as capture:
        error = capture.fail()
    assert isinstance(error, SlotLost)
    assert "cannot send what follows" in str(error)
    assert "on_slot_lost: resync" in str(error)
    assert [change.after for change in captured(tmp_path)] == [("1",)]


def test_a_position_that_the_server_cannot_decode_is_told_after_some_attempts(
    database: Database, tmp_path: Path
) -> None:
    """A byte that is no text, in a database that does not check: the stream wants UTF-8."""
    unchecked = Database(database.server, f"{database.name}_ascii")
    database.execute(f"create database {unchecked.name} encoding 'SQL_ASCII' locale 'C' template template0")
    try:
        unchecked.execute("create table t (id int primary key, v text)", "create publication p for table t")
        spec = spec_for(unchecked, tmp_path)
        with running(spec) as capture:
            unchecked.execute("insert into t values (1, 'text')")
            eventually(lambda: captured(tmp_path))
            with psycopg.connect(unchecked.dsn, client_encoding="SQL_ASCII", autocommit=True) as writer:
                writer.execute(b"insert into t values (2, E'\\xff')")
            told = capture.until_state("retrying")
            assert told["error"]["kind"] == "ConnectionFailed"
            error = capture.fail()
        assert isinstance(error, DecodingFailed)
        assert isinstance(error, SlotLost), "`on_slot_lost: resync` covers it"
        assert f"{ATTEMPTS} times" in str(error)
        assert error.where["position"] is not None
        assert error.where["slot"] == spec.slot
        assert [change.after for change in captured(tmp_path)] == [("1", "text")]
    finally:
        unchecked.execute(f"select pg_drop_replication_slot('{spec_for(unchecked, tmp_path).slot}')")
        database.execute(f"drop database {unchecked.name} with (force)")


def test_a_time_limit_for_transactions_does_not_end_the_decoding_of_a_long_one(database: Database) -> None:
    """The walsender decodes each in a transaction of its own, which lasts as long as its client takes."""
    if database.query("show server_version_num")[0][0] < "170000":
        pytest.skip("transaction_timeout exists from 17 on")
    size = 60_000_000
    database.execute(
        "create table t (v text); create publication p for table t",
        "select pg_create_logical_replication_slot('s', 'pgoutput')",
        f"insert into t select repeat('x', {size // 60}) from generate_series(1, 60)",
        f'alter database "{database.name}" set transaction_timeout = 100',
    )
    with Receiver(replication_conninfo(database.dsn)) as receiver:
        database.execute(f'alter database "{database.name}" reset transaction_timeout')
        receiver.start("s", "p", ZERO, streaming=False)
        waiting = """
            select clock_timestamp() - state_change > interval '300 ms' from pg_stat_activity
            where datname = current_database() and wait_event = 'WalSenderWriteData'
        """
        eventually(lambda: database.query(waiting) == [(True,)])
        while size > 0:
            run = receiver.receive(30)
            assert run is not None
            size -= len(run.data)


def test_attempts_count_at_one_position_and_what_may_pass_does_not_count(
    database: Database, tmp_path: Path
) -> None:
    diagnosis = Diagnosis(spec_for(database, tmp_path))
    broken, full = psycopg.errors.InternalError_("words"), psycopg.errors.DiskFull("words")
    passing = [full, psycopg.errors.lookup("25P03")("words"), psycopg.errors.lookup("25P04")("words")]
    for position in range(2 * ATTEMPTS):
        assert type(diagnosis.of(broken, lambda at=position: Lsn(at))) is ConnectionFailed  # type: ignore[misc]
    for _ in range(2 * ATTEMPTS):
        for error in passing:
            assert type(diagnosis.of(error, lambda: Lsn(99))) is ConnectionFailed
    for _ in range(ATTEMPTS - 1):
        assert type(diagnosis.of(broken, lambda: Lsn(99))) is ConnectionFailed
    failed = diagnosis.of(broken, lambda: Lsn(99))
    assert isinstance(failed, DecodingFailed)
    assert isinstance(from_dict(to_dict(failed)), SlotLost), "also from the capture's process"

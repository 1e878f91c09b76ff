"""Slots: made, described, and refused when they have lost something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from psycopg.conninfo import make_conninfo

from penstock.model import ZERO, Lsn
from penstock.model.errors import AccessDenied, NotReady, PenstockError, SlotInUse, SlotLost
from penstock.postgres import slot
from penstock.postgres.connection import Connection, connect
from tests.bed import Database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with connect(database.dsn) as opened:
        yield opened


def name_for(database: Database) -> str:
    return f"slot_{database.name}"


def test_a_slot_is_made_described_and_dropped(database: Database, connection: Connection) -> None:
    name = name_for(database)
    assert slot.describe(connection, name) is None
    start = slot.create(connection, name)
    state = slot.describe(connection, name)
    assert state is not None
    assert (state.name, state.plugin, state.database, state.here) == (name, "pgoutput", database.name, True)
    assert state.confirmed_flush == start
    assert state.restart_lsn is not None
    assert state.restart_lsn <= start
    assert (state.active, state.active_pid, state.temporary, state.failover) == (False, None, False, False)
    assert (state.wal_status, state.invalidation_reason, state.conflicting) == ("reserved", None, False)
    slot.check_usable(state, start)
    assert slot.drop(connection, name)
    assert not slot.drop(connection, name)


def test_a_slot_of_that_name_is_not_made_twice(database: Database, connection: Connection) -> None:
    slot.create(connection, name_for(database))
    with pytest.raises(PenstockError, match="already exists"):
        slot.create(connection, name_for(database))


def test_a_failover_slot_where_the_server_has_them(database: Database, connection: Connection) -> None:
    if connection.info.server_version < 170000:
        with pytest.raises(NotReady, match="need PostgreSQL 17"):
            slot.create(connection, name_for(database), failover=True)
    else:
        slot.create(connection, name_for(database), failover=True)
        state = slot.describe(connection, name_for(database))
        assert state is not None
        assert state.failover


def test_a_temporary_slot_goes_with_its_connection(database: Database, connection: Connection) -> None:
    with connect(database.dsn) as other:
        slot.create(other, name_for(database), temporary=True)
        state = slot.describe(connection, name_for(database))
        assert state is not None
        assert state.temporary
        with pytest.raises(SlotInUse, match="is active"):
            slot.drop(connection, name_for(database))
    while slot.describe(connection, name_for(database)):
        pass


def test_a_role_without_rights_is_denied(database: Database) -> None:
    database.execute("create role slotless login")
    try:
        with connect(database.dsn.replace("user=postgres", "user=slotless")) as connection:
            assert slot.describe(connection, "nothing") is None
            with pytest.raises(AccessDenied):
                slot.create(connection, name_for(database))
    finally:
        database.execute("drop role slotless")


def test_no_slot_left_says_so(own_database: Database) -> None:
    with connect(own_database.dsn) as connection:
        for number in range(40):
            slot.create(connection, f"slot_{number}")
        with pytest.raises(NotReady, match="all replication slots are in use"):
            slot.create(connection, "one_more")


def test_wal_level_replica_says_so(own_database: Database) -> None:
    own_database.server.stop()
    own_database.server.settings["wal_level"] = "replica"
    own_database.server.start()
    with connect(own_database.dsn) as connection, pytest.raises(NotReady, match="wal_level"):
        slot.create(connection, "slot")


def test_a_missing_slot_is_lost() -> None:
    with pytest.raises(SlotLost, match=r"the slot does not exist \(position 0/10\)"):
        slot.check_usable(None, Lsn(16))


def test_a_slot_moved_on_by_somebody_else_is_lost(database: Database, connection: Connection) -> None:
    start = slot.create(connection, name_for(database))
    database.execute("create table t as select 1 as x")
    connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (name_for(database),))
    state = slot.describe(connection, name_for(database))
    assert state is not None
    assert state.confirmed_flush is not None
    with pytest.raises(SlotLost, match=f"moved on to {state.confirmed_flush}, but only .* before {start}"):
        slot.check_usable(state, start)
    slot.check_usable(state, state.confirmed_flush)
    slot.check_usable(state, ZERO)


def test_a_slot_of_another_database_or_plugin_is_refused(database: Database, connection: Connection) -> None:
    slot.create(connection, name_for(database))
    with connect(database.server.dsn()) as elsewhere:
        seen = slot.describe(elsewhere, name_for(database))
    with pytest.raises(SlotLost, match=f"belongs to the database {database.name}"):
        slot.check_usable(seen, ZERO)
    state = slot.describe(connection, name_for(database))
    assert state is not None
    for wrong, reason in (
        (replace(state, plugin="wal2json"), "made for the plugin wal2json"),
        (replace(state, conflicting=True), "conflicted with recovery"),
    ):
        with pytest.raises(SlotLost, match=reason):
            slot.check_usable(wrong, ZERO)


def test_a_two_phase_slot_is_refused_as_such(database: Database, connection: Connection) -> None:
    connection.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (name_for(database),)
    )
    state = slot.describe(connection, name_for(database))
    with pytest.raises(NotReady, match="two_phase") as told:
        slot.check_usable(state, ZERO)
    assert "choose another slot_name" in str(told.value)


def test_a_slot_is_made_though_the_roles_statements_may_take_no_time(database: Database) -> None:
    """It waits for the transactions that run: as long as they do."""
    limits = "-c statement_timeout=300 -c lock_timeout=300"
    with (
        connect(make_conninfo(database.dsn, options=limits)) as connection,
        database.connect() as writer,
    ):
        writer.execute("begin")
        writer.execute("create table long (id int)")
        ending = threading.Timer(1.5, lambda: writer.execute("commit"))
        ending.start()
        slot.create(connection, name_for(database))
        ending.join()


def test_a_physical_slot_is_refused(database: Database, connection: Connection) -> None:
    name = f"physical_{database.name}"
    connection.execute("select pg_create_physical_replication_slot(%s)", (name,))
    try:
        with pytest.raises(SlotLost, match="physical slot"):
            slot.check_usable(slot.describe(connection, name), ZERO)
    finally:
        slot.drop(connection, name)


def test_a_slot_whose_wal_was_removed_is_lost(own_database: Database) -> None:
    lose_wal(own_database, "slot")
    with connect(own_database.dsn) as connection:
        state = slot.describe(connection, "slot")
        assert state is not None
        with pytest.raises(SlotLost, match="removed WAL that the slot still needed"):
            slot.check_usable(state, ZERO)


def lose_wal(database: Database, name: str) -> None:
    """As an outage would that lasted longer than max_slot_wal_keep_size allows."""
    database.execute("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    with connect(database.dsn) as connection:
        slot.create(connection, name)
        for _ in range(4):
            connection.execute("select pg_logical_emit_message(false, 'x', 'x')")
            connection.execute("select pg_switch_wal()")
        connection.execute("checkpoint")

"""Sessions are kept open between transactions, and used again only while the server keeps them too."""

from __future__ import annotations

import psycopg
import pytest

from penstock.destinations.postgres.session import close_idle, of_table, session
from penstock.model.errors import DestinationUnready, RowRefused
from tests.bed import Database


def pid(database: Database) -> int:
    with session(database.dsn, "warehouse") as connection:
        return connection.info.backend_pid


def make_a_table_in_a_read_only_transaction(database: Database) -> None:
    with session(database.dsn, "warehouse") as connection:
        connection.execute("set transaction read only")
        connection.execute("create table t ()")


def test_a_session_is_used_again_until_the_server_ends_it(database: Database) -> None:
    try:
        first = pid(database)
        assert pid(database) == first
        assert database.query("select pg_terminate_backend(%s, 10000)", first) == [(True,)]
        second = pid(database)
        assert second != first
        with session(database.dsn, "warehouse") as connection:
            assert connection.execute("select 1").fetchone() == (1,)
            assert connection.info.backend_pid == second
    finally:
        close_idle(database.dsn)


def test_what_keeps_every_table_from_being_written_is_no_error_of_one(database: Database) -> None:
    assert isinstance(of_table(psycopg.errors.DiskFull("no room")), DestinationUnready)
    raised = "do $$ begin raise exception 'full' using errcode = 'disk_full'; end $$"
    with pytest.raises(psycopg.errors.DiskFull) as by_a_function, database.connect() as connection:
        connection.execute(raised)
    assert not isinstance(of_table(by_a_function.value), DestinationUnready)
    with pytest.raises(DestinationUnready, match="read-only"):
        make_a_table_in_a_read_only_transaction(database)
    assert isinstance(of_table(psycopg.errors.CheckViolation("x")), RowRefused)

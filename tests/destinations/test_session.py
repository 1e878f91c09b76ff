"""Sessions are kept open between transactions, and used again only while the server keeps them too."""

from __future__ import annotations

from penstock.destinations.postgres.session import close_idle, session
from tests.bed import Database


def pid(database: Database) -> int:
    with session(database.dsn, "warehouse") as connection:
        return connection.info.backend_pid


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

"""The test bed itself."""

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database


def test_each_test_has_a_fresh_database(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    assert database.query("select count(*) from pg_class where relname = 't'") == [(1,)]


def test_the_server_can_follow_logically(database: Database) -> None:
    assert database.query("show wal_level") == [("logical",)]


def test_a_killed_server_starts_again(own_server: PostgresServer) -> None:
    own_server.execute("create table t as select 1 as x")
    own_server.kill()
    own_server.start()
    own_server.execute("select x from t")

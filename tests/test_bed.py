"""The test bed itself."""

import os
import subprocess
import sys
from pathlib import Path

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database

ROOT = Path(__file__).parents[1]


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


def test_further_servers_are_named_by_their_folders() -> None:
    wanted = os.environ | {"PENSTOCK_TEST_PG_BINS": "/usr/lib/postgresql/15/bin", "PENSTOCK_TEST_PG_PAIR": ""}
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:randomly", "tests/postgres"]
    done = subprocess.run(collecting, cwd=ROOT, env=wanted, capture_output=True, text=True, check=True)
    tests = {line for line in done.stdout.splitlines() if "[embedded" in line}
    assert tests
    assert {line.replace("[embedded", "[15") for line in tests} <= set(done.stdout.splitlines())

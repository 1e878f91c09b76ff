"""What Penstock locks of the application's tables makes no transaction of the application fail.

PostgreSQL looks for a deadlock once, when a session has waited for `deadlock_timeout`, and ends that
session's transaction. Ours began to wait before and found none; so it has to end before the application's
looks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import sql

from penstock.model import TableName
from penstock.postgres import publication
from penstock.postgres.connection import connect, wait_briefly
from penstock.postgres.snapshot import Snapshot
from tests.bed import Database
from tests.capture.running import eventually
from tests.postgres.reading import oid

WAITING = "select from pg_locks where not granted"
PAST_OUR_OWN_CHECK = (
    "select pg_sleep(1.2 * setting::int / 1000) from pg_settings where name = 'deadlock_timeout'"
)


def test_a_snapshot_of_partitions_that_are_truncated_one_by_one(database: Database) -> None:
    database.execute(
        "create table m (id int) partition by list (id)",
        "create table m_a partition of m for values in (1)",
        "create table m_b partition of m for values in (2)",
    )
    table = oid(database, "m")
    with ThreadPoolExecutor(1) as pool, database.connect() as application:
        with application.transaction():
            application.execute("truncate m_b")
            opening = pool.submit(Snapshot.open, database.dsn, table)
            eventually(lambda: database.query(WAITING))
            application.execute(PAST_OUR_OWN_CHECK)
            application.execute("truncate m_a")
        opening.result().close()


def test_a_publication_of_tables_that_are_altered_one_by_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was locked only after it was looked for locks."""
    monkeypatch.setattr(publication, "_busy", lambda *_: ({}, set()))
    database.execute("create table a (id int primary key)", "create table b (id int primary key)")
    database.execute(
        f"alter database {sql.Identifier(database.name).as_string()} set deadlock_timeout = '400ms'"
    )
    a, b = TableName("public", "a"), TableName("public", "b")
    with (
        ThreadPoolExecutor(1) as pool,
        connect(database.dsn) as connection,
        database.connect() as application,
    ):
        wait_briefly(connection)
        with application.transaction():
            application.execute("lock table b in share mode")
            publishing = pool.submit(publication.ensure, connection, "p", [a, b], create=True)
            eventually(lambda: database.query(WAITING))
            application.execute(PAST_OUR_OWN_CHECK)
            application.execute("lock table a in share mode")
        publishing.result()

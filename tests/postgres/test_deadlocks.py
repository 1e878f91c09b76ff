"""What Penstock locks of the application's tables makes no transaction of the application fail.

PostgreSQL looks for a deadlock once, when a session has waited for `deadlock_timeout`, and ends that
session's transaction. Ours began to wait before and found none; so it has to end before the application's
looks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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

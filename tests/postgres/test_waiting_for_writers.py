"""Before a snapshot: whoever wrote to a table that was not published yet is waited for."""

from __future__ import annotations

import threading

from penstock.postgres import snapshot as module
from penstock.postgres.connection import connect
from penstock.postgres.snapshot import wait_for_writers
from tests.bed import Database
from tests.postgres.reading import beside, oid


def test_it_waits_for_those_who_wrote_to_the_table_and_for_nobody_else(database: Database) -> None:
    database.execute(
        "create table t (id int) partition by list (id); create table t1 partition of t for values in (1)",
        "create table other (id int)",
    )
    ended = threading.Event()

    def wait(stop: threading.Event) -> None:
        with connect(database.dsn) as connection:
            wait_for_writers(connection, oid(database, "t"), stop)
        ended.set()

    def busy() -> bool:
        return not ended.wait(0.3)

    with (
        database.connect() as writer,
        database.connect() as leaf_writer,
        database.connect() as reader,
        database.connect() as elsewhere,
        database.connect() as later,
    ):
        for connection, statement in (
            (writer, "insert into t values (1)"),
            (leaf_writer, "delete from t1"),
            (reader, "select from t for update"),
            (elsewhere, "insert into other values (1)"),
        ):
            connection.execute("begin")
            connection.execute(statement.encode())
        with beside(wait):
            assert busy()
            later.execute("begin")
            later.execute("insert into t values (1)")
            writer.execute("commit")
            assert busy()
            leaf_writer.execute("rollback")
            assert ended.wait(5)
        ended.clear()
        with beside(wait):
            assert busy(), "the later writer counts for one who asks now"
        assert ended.is_set(), "it stops when told to"


def test_who_waits_for_writers_asks_less_and_less_often(database: Database) -> None:
    """A look at the locks holds up everybody who wants one."""
    database.execute("create table t (id int primary key)")
    pauses: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0)
            return len(pauses) == 20

    with database.connect() as writer, connect(database.dsn) as connection:
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        wait_for_writers(connection, oid(database, "t"), Stop())
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (module.POLL, module.LONGEST_POLL)

"""Before a snapshot: who wrote to a table that was not published yet."""

from __future__ import annotations

from penstock.model import TableId
from penstock.postgres.connection import connect
from penstock.postgres.writers import still, writers
from tests.bed import Database
from tests.postgres.reading import oid


def test_those_are_found_who_wrote_to_the_table_or_a_partition_and_nobody_else(database: Database) -> None:
    database.execute(
        "create table t (id int) partition by list (id); create table t1 partition of t for values in (1)",
        "create table u (id int)",
        "create table other (id int)",
    )
    t, u, gone = oid(database, "t"), oid(database, "u"), TableId(1)
    with (
        database.connect() as writer,
        database.connect() as leaf_writer,
        database.connect() as reader,
        database.connect() as elsewhere,
        database.connect() as truncating,
        connect(database.dsn) as asking,
    ):
        for connection, statement in (
            (writer, "insert into t values (1)"),
            (leaf_writer, "delete from t1"),
            (reader, "select from t for update"),
            (elsewhere, "insert into other values (1)"),
            (truncating, "truncate u"),
        ):
            connection.execute("begin")
            connection.execute(statement.encode())
        asking.execute("set lock_timeout = '1ms'")
        before = writers(asking, [t, u, gone])
        assert {table: {one.pid for one in found} for table, found in before.items()} == {
            t: {writer.info.backend_pid, leaf_writer.info.backend_pid},
            u: {truncating.info.backend_pid},
            gone: set(),
        }
        writer.execute("commit")
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        (left,) = still(before[t], writers(asking, [t])[t])
        assert left.pid == leaf_writer.info.backend_pid, "it is another transaction"


def test_one_that_was_prepared_is_the_same_and_has_a_name(own_database: Database) -> None:
    own_database.execute("alter system set max_prepared_transactions = 5")
    own_database.server.stop()
    own_database.server.start()
    own_database.execute("create table t (id int)")
    t = oid(own_database, "t")
    with own_database.connect() as writer, connect(own_database.dsn) as asking:
        writer.execute("begin")
        writer.execute("insert into t values (1)")
        before = writers(asking, [t])[t]
        assert [str(one) for one in before] == [f"process {writer.info.backend_pid}"]
        writer.execute("prepare transaction 'left behind'")
        after = still(before, writers(asking, [t])[t])
        assert [str(one) for one in after] == ["prepared transaction 'left behind'"]
        own_database.execute("commit prepared 'left behind'")
        assert still(before, writers(asking, [t])[t]) == set()

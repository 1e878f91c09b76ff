"""The snapshot of a table and its parts, while others write, rewrite, rename and lock."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql

from penstock.model import Column, ColumnType, TableName
from penstock.model.errors import (
    NotReady,
    ReadDenied,
    SnapshotLost,
    TableBusy,
    UnknownTable,
)
from penstock.postgres import exported_snapshot
from penstock.postgres.snapshot import CopyRange, Snapshot, copy_out
from penstock.spark.snapshot.fetch import fetch_typed
from penstock.spool.segment import Op
from tests.bed import Database
from tests.capture.running import captured, eventually, running, spec_for
from tests.postgres.reading import beside, oid

SMALL = 64 << 10
"""Bytes of a part, so that a table of a few hundred kilobytes has several."""
ACCOUNTS = 600


def rows_of(database: Database, snapshot: Snapshot, parts: Sequence[CopyRange]) -> list[tuple[str, ...]]:
    """What COPY writes for these parts, by columns; NULL is \\N."""
    text = b"".join(chunk for part in parts for chunk in copy_out(database.dsn, snapshot.name, part)).decode()
    return [tuple(line.split("\t")) for line in text.splitlines()]


def copied(database: Database, table: str, *columns: str, row_filter: str | None = None) -> Counter[Any]:
    with Snapshot.open(database.dsn, oid(database, table)) as snapshot:
        return Counter(rows_of(database, snapshot, snapshot.ranges(columns, row_filter, SMALL)))


def transfer(connection: psycopg.Connection[Any], random: Random) -> None:
    """Moves money, in a savepoint, closes an account and opens it again; rests at times in between."""
    with connection.transaction() as whole:
        payer, payee = sorted(random.sample(range(ACCOUNTS), 2))
        amount = random.randrange(1, 50)
        change(whole, payer, -amount)
        if random.random() < 0.1:
            time.sleep(random.random() * 0.3)
        with connection.transaction():
            change(whole, payee, amount)
        if random.random() < 0.3:
            connection.execute(
                """
                with closed as (delete from accounts where id = %s returning *)
                insert into accounts select id + 100000, balance, note from closed
                """,
                (payer,),
            )
            connection.execute("update accounts set id = id - 100000 where id = 100000 + %s", (payer,))


def change(transaction: psycopg.Transaction, account: int, amount: int) -> None:
    """Not at all if somebody closed the account while we waited for it."""
    done = transaction.connection.execute(
        "update accounts set balance = balance + %s where id = %s", (amount, account)
    )
    if done.rowcount != 1:
        raise psycopg.Rollback(transaction)


def mover(database: Database, seed: int) -> Any:
    def move(stop: threading.Event) -> None:
        random = Random(seed)
        with database.connect() as connection:
            while not stop.is_set():
                transfer(connection, random)

    return move


def test_a_copy_and_the_changes_it_does_not_see_are_the_table(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table accounts (id int primary key, balance int not null, note text)",
        f"insert into accounts select g, 1000, repeat('x', 400) from generate_series(0, {ACCOUNTS - 1}) g",
        "create publication p for table accounts",
    )
    table = oid(database, "accounts")
    copies = []
    with running(spec_for(database, tmp_path)) as capture:
        with beside(*(mover(database, seed) for seed in range(4))):
            for _ in range(6):
                with Snapshot.open(database.dsn, table) as snapshot:
                    time.sleep(0.3)
                    parts = snapshot.ranges(("id", "balance"), None, SMALL)
                    copies.append((snapshot, rows_of(database, snapshot, parts)))
        capture.until_past(database)
    assert len(parts) >= 4
    expected = dict(database.query("select id::text, balance::text from accounts"))
    changes = captured(tmp_path)
    overlapped = 0
    for snapshot, rows in copies:
        rebuilt = {row[0]: row[1] for row in rows}
        assert len(rebuilt) == len(rows) == ACCOUNTS
        assert sum(map(int, rebuilt.values())) == 1000 * ACCOUNTS
        seen = snapshot.visibility.sees(np.array([change.xid for change in changes], np.int64))
        for change, is_seen in zip(changes, seen, strict=True):
            if is_seen:
                assert change.commit_lsn < snapshot.lsn
                continue
            overlapped += change.lsn < snapshot.lsn
            if change.before:
                assert change.before[0] is not None
                del rebuilt[change.before[0]]
            if change.op is not Op.DELETE:
                assert change.after is not None
                number, balance, _ = change.after
                assert number is not None
                assert balance is not None
                rebuilt[number] = balance
        assert rebuilt == expected
    assert overlapped, "no transaction was open across a snapshot: this proves little"


def test_a_partitioned_table_is_copied_by_its_leaves(database: Database) -> None:
    database.execute(
        'create table "Big Deal" (id int, k text, v text) partition by range (id)',
        'create table low partition of "Big Deal" for values from (0) to (100) partition by list (k)',
        "create table low_a partition of low for values in ('a')",
        "create table low_b (gone int, v text, k text, id int)",
        "alter table low_b drop column gone; alter table low attach partition low_b for values in ('b')",
        'create table high partition of "Big Deal" for values from (100) to (1000)',
        'insert into "Big Deal" select g, chr(97 + g % 2), repeat(chr(97 + g % 2), 900)'
        " from generate_series(0, 299) g",
    )
    name = '"Big Deal"'
    expected = Counter(database.query('select v, id::text, k from "Big Deal"'))
    with Snapshot.open(database.dsn, oid(database, name)) as snapshot:
        parts = snapshot.ranges(("v", "id", "k"), None, SMALL)
        assert {part.table.name for part in parts} == {"low_a", "low_b", "high"}
        assert len(parts) > 3
        assert Counter(rows_of(database, snapshot, parts)) == expected


def test_partitions_are_attached_while_a_snapshot_is_open(database: Database) -> None:
    database.execute("create table t (id int) partition by range (id)")
    with Snapshot.open(database.dsn, oid(database, "t")):
        database.execute(
            "set lock_timeout = '10s'; create table first (like t);"
            "alter table t attach partition first for values from (1) to (9)"
        )


def test_children_by_inheritance_are_not_part_of_a_table(database: Database) -> None:
    database.execute(
        "create table parent (id int); create table child () inherits (parent)",
        "insert into parent values (1); insert into child values (2)",
    )
    assert copied(database, "parent", "id") == Counter([("1",)])


def test_only_the_columns_and_rows_that_are_published(database: Database) -> None:
    if database.query("show server_version_num") < [("150000",)]:
        pytest.skip("column lists and row filters exist from 15 on")
    database.execute(
        'create table "Ta.b""le %" (gone text, "select" int, "ü ""x""" text, hidden text,'
        ' double_ int generated always as ("select" * 2) stored)',
        'alter table "Ta.b""le %" drop column gone',
        'insert into "Ta.b""le %" ("select", "ü ""x""", hidden)'
        " select g, case when g % 3 > 0 then 'a' || g end, repeat('h', 700) from generate_series(1, 300) g",
        'create publication p for table "Ta.b""le %" ("ü ""x""", "select")'
        " where (\"select\" % 2 = 0 and hidden like 'h%')",
    )
    ((row_filter,),) = database.query("select rowfilter from pg_publication_tables")
    found = copied(
        database, '"Ta.b""le %"', 'ü "x"', "select", "double_", row_filter=f"{row_filter} -- a comment"
    )
    expected = [(f"a{g}" if g % 3 else "\\N", str(g), str(2 * g)) for g in range(2, 301, 2)]
    assert found == Counter(expected)


def test_an_empty_table_is_one_open_part(database: Database) -> None:
    database.execute("create table t (id int)")
    with Snapshot.open(database.dsn, oid(database, "t")) as snapshot:
        (part,) = snapshot.ranges(("id",))
        assert (part.first_block, part.end_block) == (0, None)
        assert rows_of(database, snapshot, [part]) == []


def test_rows_without_a_key_come_as_often_as_they_are_there(database: Database) -> None:
    database.execute(
        "create table t (a int, b text); alter table t replica identity full",
        "insert into t select 7, repeat('same', 100) from generate_series(1, 1000)",
        "delete from t where ctid >= '(2,0)' and ctid < '(4,0)'",
        "vacuum t",
    )
    ((count,),) = database.query("select count(*) from t")
    assert copied(database, "t", "a") == Counter({("7",): count})


def test_rows_of_all_sizes_come_whole(database: Database) -> None:
    """Empty ones by the thousand, and some that are larger than what is taken at once."""
    sizes = "case n % 1000 when 0 then 3000000 when 1 then 70000 when 2 then 119999 else 0 end"
    database.execute(
        "create table sizes (v text)",
        f"insert into sizes select repeat('v', {sizes}) from generate_series(1, 3000) n",
    )
    with Snapshot.open(database.dsn, oid(database, "sizes")) as snapshot:
        parts = snapshot.ranges(("v",), None, 1 << 40)
        chunks = [chunk for part in parts for chunk in copy_out(database.dsn, snapshot.name, part)]
    assert all(chunk.endswith(b"\n") for chunk in chunks), "cut between rows"
    lengths = Counter(map(len, b"".join(chunks).splitlines()))
    assert lengths == {0: 2991, 3000000: 3, 70000: 3, 119999: 3}


def test_large_values_make_parts_of_fewer_blocks(database: Database) -> None:
    database.execute(
        "create table t (id int, v text); alter table t alter v set storage external",
        "insert into t select g, repeat('v', 20000) from generate_series(1, 400) g",
    )
    with Snapshot.open(database.dsn, oid(database, "t")) as snapshot:
        parts = snapshot.ranges(("id", "v"), None, 4 << 20)
        assert len(parts) > 1, "2 blocks of rows, but 8 MB of values"
        assert sum(part.bytes for part in parts) > 8_000_000
        found = rows_of(database, snapshot, parts)
    assert Counter(found) == Counter((str(g), "v" * 20000) for g in range(1, 401))


@pytest.mark.parametrize(
    "statement",
    [
        "truncate t; insert into t values (-1, 'new')",
        "alter table t alter id type bigint using id + 1000",
        "alter table t rename to old; create table t (id int, v text)",
    ],
)
def test_what_rewrites_the_table_comes_before_the_snapshot_or_waits(
    database: Database, statement: str
) -> None:
    """The statement holds its lock when the snapshot is asked for, and commits while that waits."""
    database.execute(
        "create table t (id int, v text)", "insert into t select g, 'x' from generate_series(1, 100) g"
    )
    table = oid(database, "t")
    with database.connect() as other, other.transaction():
        other.execute(statement.encode())

        def rewritten(_: threading.Event) -> None:
            with Snapshot.open(database.dsn, table) as snapshot:
                found.extend(rows_of(database, snapshot, snapshot.ranges(("id", "v"))))

        found: list[tuple[str, ...]] = []
        opening = threading.Thread(target=rewritten, args=(threading.Event(),))
        opening.start()
        eventually(lambda: database.query("select from pg_locks where not granted"))
    opening.join()
    ((name,),) = database.query("select %s::oid::regclass::text", table)
    assert Counter(found) == Counter(database.query(f"select id::text, v from {name}"))


def test_a_statement_that_waits_for_the_copy_makes_it_fail_and_not_hang(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported_snapshot, "LOCK_WAIT", 50)
    database.execute("create table t (id int)", "insert into t values (1)")
    table = oid(database, "t")
    truncating = threading.Thread(target=database.execute, args=("truncate t",))
    with Snapshot.open(database.dsn, table) as snapshot:
        parts = snapshot.ranges(("id",))
        truncating.start()
        eventually(lambda: database.query("select from pg_locks where not granted"))
        with pytest.raises(TableBusy) as raised:
            rows_of(database, snapshot, parts)
        assert raised.value.retry
        assert "public.t" in str(raised.value)
    truncating.join()
    with database.connect() as other, other.transaction():
        other.execute("lock table t")
        with pytest.raises(TableBusy):
            Snapshot.open(database.dsn, table)
    assert copied(database, "t", "id") == Counter()


def test_a_snapshot_that_ended_is_told_as_such(database: Database) -> None:
    database.execute("create table t (id int)")
    table = oid(database, "t")
    with Snapshot.open(database.dsn, table) as snapshot:
        parts = snapshot.ranges(("id",))
        snapshot.alive()
        database.execute("select pg_terminate_backend(pid) from pg_locks where relation = 't'::regclass")
        with pytest.raises(SnapshotLost, match=r"public\.t"):
            snapshot.alive()
        with pytest.raises(SnapshotLost, match="not exported any more"):
            rows_of(database, snapshot, parts)
    database.execute("drop table t")
    with pytest.raises(UnknownTable):
        Snapshot.open(database.dsn, table)


def test_no_time_limit_of_the_server_ends_a_copy(database: Database) -> None:
    database.execute(
        "create table t (id int, v text)",
        "insert into t select g, repeat('x', 1000) from generate_series(1, 2000) g",
    )
    name = sql.Identifier(database.name).as_string()
    for setting in ("idle_in_transaction_session_timeout", "statement_timeout", "transaction_timeout"):
        if database.query("select from pg_settings where name = %s", setting):
            database.execute(f"alter database {name} set {setting} = 300")
    with Snapshot.open(database.dsn, oid(database, "t")) as snapshot:
        time.sleep(0.5)
        snapshot.alive()
        chunks = copy_out(database.dsn, snapshot.name, snapshot.ranges(("id", "v"))[0])
        first = next(chunks)
        time.sleep(0.5)
        assert (first + b"".join(chunks)).count(b"\n") == 2000


def test_a_name_that_comes_back_after_a_crash_is_not_taken_for_the_snapshot_that_had_it(
    own_database: Database,
) -> None:
    own_database.execute("create table t (id integer)")
    part = CopyRange(TableName("public", "t"), ("id",), 0, None, None, 0)
    column = Column("id", ColumnType(23, "int4"))
    lost: dict[str, str] = {}
    for number in range(10):
        own_database.execute(f"insert into t values ({number})")
        with Snapshot.open(own_database.dsn, oid(own_database, "t")) as snapshot:
            name = exported_snapshot.exported_name(snapshot.name)
            if name in lost:
                with pytest.raises(SnapshotLost, match="another snapshot"):
                    list(copy_out(own_database.dsn, lost[name], part))
                with pytest.raises(SnapshotLost, match="another snapshot"):
                    list(fetch_typed(own_database.dsn, lost[name], part, [column]))
                assert b"".join(copy_out(own_database.dsn, snapshot.name, part)).count(b"\n") == number + 1
                return
            lost[name] = snapshot.name
            own_database.server.kill()
        own_database.server.start()
    pytest.fail(f"no name came back: {list(lost)}")


def test_no_more_rows_than_wanted_are_read_at_once(database: Database) -> None:
    database.execute("create table t (id int)", "insert into t select generate_series(1, 100)")
    with Snapshot.open(database.dsn, oid(database, "t")) as snapshot:
        (part,) = snapshot.ranges(("id",), batch_rows=7)
        chunks = list(copy_out(database.dsn, snapshot.name, part))
    assert [chunk.count(b"\n") for chunk in chunks] == [7] * 14 + [2]
    assert b"".join(chunks).split() == [str(id).encode() for id in range(1, 101)]


def test_rows_that_the_role_must_not_see_stop_the_copy(database: Database) -> None:
    role = f"limited_{database.name}"
    database.execute(
        "create table t (id int, owner text); create table secret (id int)",
        f"create role {role} login",
        f"grant select on t to {role}; create policy own on t using (owner = current_user)",
        "alter table t enable row level security",
    )
    limited = psycopg.conninfo.make_conninfo(database.dsn, user=role)
    try:
        with Snapshot.open(limited, oid(database, "t")) as snapshot:
            with pytest.raises(ReadDenied, match="BYPASSRLS"):
                snapshot.ranges(("id",))
            part = CopyRange(snapshot.table, ("id",), 0, None, None, 0)
            with pytest.raises(ReadDenied, match="row-level security"):
                list(copy_out(limited, snapshot.name, part))
        with pytest.raises(ReadDenied, match=r"public\.secret"):
            Snapshot.open(limited, oid(database, "secret"))
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


def test_a_standby_is_refused(own_database: Database) -> None:
    """It cannot say which transactions a snapshot of its own contains."""
    own_database.execute("create table t (id int)")
    table = oid(own_database, "t")
    server = own_database.server
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    try:
        with pytest.raises(NotReady, match="primary"):
            Snapshot.open(own_database.dsn, table)
    finally:
        server.stop()

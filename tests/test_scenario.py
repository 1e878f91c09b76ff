"""The scenario language and its checker: that they do everything, and that the checker can say no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from penstock.demo.proof import Checksum, checksums
from penstock.embedded.postgres import PostgresServer
from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.events import Row
from penstock.postgres.connection import connect
from penstock.spool.changes import Change
from penstock.spool.identity import Identity
from penstock.spool.segment import SCHEMA, Op
from penstock.spool.writer import SpoolWriter
from tests.altering import Altering
from tests.bed import Database, fresh_database
from tests.checker import SCHEMA_CHANGES, Ledger, Replica, changes_of_spool, sequence_difference, text_rows
from tests.scenario import Workload
from tests.shape import Published
from tests.writer import Writer

T = TableName("public", "t")


@pytest.mark.parametrize("via_root", [True, False], ids=["by root", "by leaf"])
def test_a_workload_is_rebuilt_from_its_changes(database: Database, via_root: bool) -> None:
    workload = Workload(database, seed=1).create(via_root=via_root)
    ledger = Ledger(database, "scenario").create()
    workload.run(transactions=300)
    replica = Replica(ledger.changes())
    assert not replica.difference(database, workload.tables)
    assert replica.applied > 1000


def test_concurrent_writers_are_followed_too(database: Database) -> None:
    workload = Workload(database, seed=2).create()
    ledger = Ledger(database, "scenario").create()
    workload.run_for(seconds=2, writers=3)
    assert not Replica(ledger.changes()).difference(database, workload.tables)
    assert workload.done["commit"] > 20


def test_a_schema_change_is_told_of_the_table_that_it_met(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another writer has swapped names since this one's last look at the tables."""
    monkeypatch.setattr(Altering, "_kinds", lambda *_: ["add with default"])
    monkeypatch.setattr(Writer, "STEPS", {"schema": 1})
    Workload(database, seed=1).create()
    published = Published("scenario", ())
    told = """
        select count(*) filter (where a.attname = s.told::json -> 'did' ->> 1), count(*)
          from schema_changes s left join pg_attribute a
            on a.attrelid = (s.told::json -> 'tables' ->> 0)::oid and a.attname = s.told::json -> 'did' ->> 1
    """
    with database.connect() as other:
        for seed in range(12):
            writer = Writer(database, published, Random(seed), Counter())
            with writer.connected():
                other.execute("alter table whole rename to aside; alter table simple rename to whole")
                other.execute("alter table aside rename to simple")
                writer.transaction(())
        ((right, all),) = other.execute(told).fetchall()
    assert right == all > 3


def test_writers_outlive_the_server(own_database: Database) -> None:
    workload = Workload(own_database, seed=3).create()
    ledger = Ledger(own_database, "scenario").create()
    with workload.running(writers=2):
        own_database.server.kill()
        own_database.server.start()
    workload.run(transactions=5)
    assert workload.done["lost connection"] > 0
    assert not Replica(ledger.changes()).difference(own_database, workload.tables)


def test_a_run_takes_every_step(database: Database) -> None:
    workload = Workload(database, seed=3).create()
    workload.run(transactions=800)
    kinds = (
        *("add", "add with default", "drop", "rename", "swap names", "make again", "move on", "widen"),
        *("identity", "move", "swap tables", "make table", "replace table", "drop table", "make table again"),
    )
    ends = ("commit", "rollback", "empty", "rollback to savepoint")
    wanted = {*Writer.STEPS, *ends, *(f"schema: {kind}" for kind in kinds)}
    assert not wanted - set(workload.done)


def test_the_same_seed_gives_the_same_rows(server: PostgresServer) -> None:
    found = []
    for seed in (4, 4, 5):
        for database in fresh_database(server):
            workload = Workload(database, seed).create()
            workload.run(transactions=60)
            with connect(database.dsn) as connection:
                found.append(checksums(connection, set(workload.tables) - {SCHEMA_CHANGES}))
    assert found[0] == found[1] != found[2]


def test_a_checksum_at_the_source_is_that_of_its_rows_as_text(database: Database) -> None:
    workload = Workload(database, seed=6).create()
    workload.run(transactions=100)
    with connect(database.dsn) as connection:
        printed = {name: Checksum.of(text_rows(connection, name)[1]) for name in workload.tables}
        assert checksums(connection, workload.tables) == printed
    assert sum(checksum.rows for checksum in printed.values()) > 50


def removed(changes: list[Change], at: int) -> list[Change]:
    return changes[:at] + changes[at + 1 :]


def doubled(changes: list[Change], at: int) -> list[Change]:
    return changes[: at + 1] + changes[at:]


def reordered(changes: list[Change], at: int) -> list[Change]:
    return [*changes[:at], changes[at + 1], changes[at], *changes[at + 2 :]]


def altered(changes: list[Change], at: int) -> list[Change]:
    row: Row = ("1", "other")
    return [*changes[:at], replace(changes[at], after=row), *changes[at + 1 :]]


@pytest.fixture
def ledger(database: Database) -> Ledger:
    """Five changes to two rows: an insert of both, an update and a delete of the first, its return."""
    database.execute("create table t (id int primary key, v text)", "create publication p for table t")
    ledger = Ledger(database, "p").create()
    database.execute(
        "insert into t values (1, 'a'), (2, 'b')",
        "update t set v = 'c' where id = 1",
        "delete from t where id = 1; insert into t values (1, 'd')",
    )
    return ledger


@pytest.mark.parametrize("tamper", [removed, doubled, altered, reordered])
def test_the_ledger_notices_every_tampering(
    ledger: Ledger, tamper: Callable[[list[Change], int], list[Change]]
) -> None:
    changes = ledger.changes()
    assert len(changes) == 5
    assert not ledger.difference(changes)
    for at in range(4):
        assert ledger.difference(tamper(changes, at))


@pytest.mark.parametrize("tamper", [removed, doubled])
def test_the_replica_notices_a_change_too_few_or_too_many(
    database: Database, ledger: Ledger, tamper: Callable[[list[Change], int], list[Change]]
) -> None:
    """But for an update that a later change hides: that is the ledger's to find."""
    changes = ledger.changes()
    assert not Replica(changes).difference(database, [T])
    noticed = [bool(Replica(tamper(changes, at)).difference(database, [T])) for at in range(5)]
    assert noticed == [change.op is not Op.UPDATE for change in changes]


def test_the_replica_notices_an_altered_value(database: Database, ledger: Ledger) -> None:
    changes = ledger.changes()
    found = Replica(altered(changes, 4)).difference(database, [T])
    assert "missing: 1 rows\n    ('1', 'd')" in found
    assert "too many: 1 rows\n    ('1', 'other')" in found


def test_a_row_changed_behind_the_streams_back_is_noticed(database: Database, ledger: Ledger) -> None:
    changes = ledger.changes()
    database.execute("update t set v = null where id = 2")
    assert "('2', null)" in Replica(changes).difference(database, [T])


def test_null_and_empty_are_not_the_same(ledger: Ledger) -> None:
    change = replace(ledger.changes()[0], after=("1", ""))
    assert sequence_difference([change], [replace(change, after=("1", None))])


def test_only_a_message_may_change_places_and_only_at_one_position(ledger: Ledger) -> None:
    first, second, *_ = ledger.changes()

    def swapped(lsn: Lsn, op: Op) -> str:
        """The difference to the two the other way round: one at 100, the other there and of that kind."""
        one = replace(first, seq=0, lsn=Lsn(100))
        other = replace(second, commit_lsn=one.commit_lsn, xid=one.xid, seq=1, lsn=lsn, op=op)
        return sequence_difference([one, other], [replace(other, seq=0), replace(one, seq=1)])

    assert not swapped(Lsn(100), Op.MESSAGE)
    assert swapped(Lsn(101), Op.MESSAGE)
    assert swapped(Lsn(100), Op.INSERT)


def spooled(path: Path, places: list[tuple[int, int]]) -> None:
    """A spool with one segment whose rows stand at these places, in this order."""
    schema = TableSchema(
        TableId(5), 1, T, ReplicaIdentity.DEFAULT, (Column("id", ColumnType(23, "int4"), key=True),)
    )
    rows = [
        {"table_id": 5, "schema_version": 1, "op": Op.INSERT, "commit_lsn": commit, "lsn": commit,
         "seq": seq, "xid": 7, "committed_at": 0, "before_kind": 0, "after": [str(seq)]}
        for commit, seq in places
    ]  # fmt: skip
    writer = SpoolWriter(path, Identity("1", "db", "slot"), Lsn(100))
    writer.learn(schema)
    writer.append(pa.RecordBatch.from_pylist(rows, SCHEMA), len(rows), Lsn(200))
    writer.cut()
    writer.close()


def test_a_spool_is_read_in_order(tmp_path: Path) -> None:
    spooled(tmp_path, [(100, 0), (100, 1), (150, 0)])
    found = list(changes_of_spool(tmp_path))
    assert [(change.commit_lsn.value, change.seq) for change in found] == [(100, 0), (100, 1), (150, 0)]
    assert found[0].table is not None
    assert found[0].table.name == T


@pytest.mark.parametrize("places", [[(100, 1), (100, 0)], [(99, 0)], [(100, 0), (200, 0)]])
def test_a_spool_out_of_order_is_noticed(tmp_path: Path, places: list[tuple[int, int]]) -> None:
    spooled(tmp_path, places)
    with pytest.raises(AssertionError, match=r"000000000001\.arrow"):
        list(changes_of_spool(tmp_path))

"""The scenario language and its checker: that they run everything, and that the checker can say no."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.bed import Database, fresh_database
from tests.checker import Ledger, Replica, rows_difference, sequence_difference, text_rows
from tests.scenario import Workload
from tests.writer import Writer

from penstock.demo.proof import Change
from penstock.embedded.postgres import PostgresServer
from penstock.model.events import Row
from penstock.postgres.connection import connect
from penstock.spool.segment import Op


def contents(database: Database, workload: Workload) -> dict[str, list[Row]]:
    with connect(database.dsn) as connection:
        return {str(name): sorted(text_rows(connection, name)[1], key=str) for name in workload.tables}


@pytest.mark.parametrize("via_root", [True, False], ids=["by root", "by leaf"])
def test_a_workload_is_rebuilt_from_its_changes(database: Database, via_root: bool) -> None:
    workload = Workload(database, seed=1).create(via_root=via_root)
    ledger = Ledger(database, "scenario").create()
    workload.run(transactions=400)
    replica = Replica(ledger.changes())
    assert not replica.difference(database, workload.tables)
    assert replica.applied > 1000


def test_concurrent_writers_are_followed_too(database: Database) -> None:
    workload = Workload(database, seed=2).create()
    ledger = Ledger(database, "scenario").create()
    workload.run_for(seconds=3, writers=3)
    assert not Replica(ledger.changes()).difference(database, workload.tables)
    assert workload.done["commit"] > 20
    assert threading.active_count() < 10


def test_a_long_enough_run_takes_every_step(database: Database) -> None:
    workload = Workload(database, seed=3).create()
    workload.run(transactions=500)
    assert not set(Writer.STEPS) - set(workload.done)
    kinds = {"add", "add with default", "drop", "rename", "move", "widen", "identity"}
    assert not {f"schema: {kind}" for kind in kinds} - set(workload.done)
    assert not {"commit", "rollback", "empty", "rollback to savepoint"} - set(workload.done)


def test_the_same_seed_gives_the_same_rows(server: PostgresServer) -> None:
    found = []
    for seed in (4, 4, 5):
        for database in fresh_database(server):
            workload = Workload(database, seed).create()
            workload.run(transactions=60)
            found.append(contents(database, workload))
    assert found[0] == found[1] != found[2]

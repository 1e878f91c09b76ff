"""A snapshot is let go when somebody waits for its lock, and what was read under it counts for nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.model.errors import SnapshotLost, TableBusy, TaskFailed
from penstock.pipeline.watched_snapshot import WatchedSnapshot
from penstock.postgres.snapshot import Snapshot
from tests.bed import Database
from tests.postgres.reading import oid


@pytest.mark.parametrize("cancelled", [True, False])
def test_who_waits_for_the_lock_has_it_whether_the_rows_were_read_or_not(
    database: Database, cancelled: bool
) -> None:
    def copy() -> None:
        with (
            Snapshot.open(database.dsn, oid(database, "t")) as snapshot,
            WatchedSnapshot(snapshot, cancel.set) as watched,
        ):
            truncating = pool.submit(database.execute, "truncate t")
            assert cancel.wait(60)
            truncating.result(60)
            if cancelled:
                raise TaskFailed("the job was cancelled")
            watched.rows_read()

    database.execute("create table t (id int)")
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool, pytest.raises(TableBusy, match="gave way to process"):
        copy()


def test_rows_that_were_read_when_the_lock_was_lost_are_not_taken(database: Database) -> None:
    database.execute("create table t (id int)")
    with (
        Snapshot.open(database.dsn, oid(database, "t")) as snapshot,
        WatchedSnapshot(snapshot, lambda: None) as watched,
    ):
        database.execute("select pg_terminate_backend(pid) from pg_locks where relation = 't'::regclass")
        with pytest.raises(SnapshotLost):
            watched.rows_read()


def test_a_table_whose_rows_were_read_is_free(database: Database) -> None:
    database.execute("create table t (id int)")
    with (
        Snapshot.open(database.dsn, oid(database, "t")) as snapshot,
        WatchedSnapshot(snapshot, lambda: None) as watched,
    ):
        watched.rows_read()
        database.execute("truncate t")
        watched.rows_read()

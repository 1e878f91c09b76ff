"""Who reads under a snapshot has all of its rows, or an error, whenever the one who holds it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import sql

from penstock.model import Column, ColumnType
from penstock.model.errors import SnapshotLost
from penstock.postgres import exported_snapshot
from penstock.postgres.snapshot import CopyRange, Snapshot, copy_out
from penstock.spark.snapshot.fetch import fetch_typed
from tests.bed import Database
from tests.capture.running import eventually
from tests.postgres.reading import oid

WAITING = "select count(*) from pg_locks where not granted"


def fetched(dsn: str, snapshot: str, part: CopyRange) -> Iterator[Any]:
    return fetch_typed(dsn, snapshot, part, [Column("id", ColumnType(23, "int4"))])


@pytest.mark.parametrize("read", [copy_out, fetched])
def test_a_table_that_is_emptied_when_the_lock_goes_is_not_read_as_empty(
    database: Database, read: Callable[..., Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported_snapshot, "LOCK_WAIT", 60_000)
    name = sql.Identifier(database.name).as_string()
    database.execute(f"alter database {name} set deadlock_timeout = '200s'", "create table t (id int)")
    database.execute("insert into t values (1)")
    with ThreadPoolExecutor(2) as pool:
        with Snapshot.open(database.dsn, oid(database, "t")) as snapshot:
            (part,) = snapshot.ranges(("id",))
            truncating = pool.submit(database.execute, "truncate t")
            eventually(lambda: database.query(WAITING) == [(1,)])
            reading = pool.submit(lambda: list(read(database.dsn, snapshot.name, part)))
            eventually(lambda: database.query(WAITING) == [(2,)])
        truncating.result()
        with pytest.raises(SnapshotLost):
            reading.result()

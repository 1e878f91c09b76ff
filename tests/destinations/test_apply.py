"""Random changes in random batches: the destination holds what the model does, after each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from penstock.changes.versions import Truncated, Versions, versions
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.postgres import PostgresTarget
from penstock.destinations.postgres.write import apply, few_rows, staging, tasks
from penstock.destinations.protocol import Kind
from penstock.model import TableSchema
from tests.bed import Database
from tests.changes.made import USERS
from tests.destinations.given import Given
from tests.destinations.model import KEYED, WHOLE, Model

SEEDS = (1, 2)
BATCHES = 12


def content(database: Database, table: TableSchema, schema: str, more: str = "") -> list[tuple[Any, ...]]:
    """All rows, the source's columns as text."""
    quoted = ['"{}"::text'.format(name.replace('"', '""')) for name in table.column_names]
    name = table.name.name.replace('"', '""')
    return database.query(f'select {", ".join(quoted)}{more} from "{schema}"."{name}"')


Write = Callable[[PostgresTarget, ChangeBatch], Sequence[object]]


def by_spark(target: PostgresTarget, batch: ChangeBatch) -> Sequence[object]:
    return target.write(batch)


def staged(target: PostgresTarget, batch: ChangeBatch) -> Sequence[object]:
    """As a task does, but as if there were many rows: in several pieces, through staging tables."""
    return tasks.write_batch(tasks.BatchWork(target._endpoint, batch))


@pytest.fixture(params=[by_spark, staged])
def write(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    if request.param is staged:
        monkeypatch.setattr(few_rows, "ROWS", -1)
        monkeypatch.setattr(staging, "LARGE", 1)
        monkeypatch.setattr(apply, "CHUNK_ROWS", 1)
    found: Write = request.param
    return found


def write_somehow(target: PostgresTarget, batch: ChangeBatch, chance: float, write: Write) -> None:
    """Once, or again, or by two tasks at the same time."""
    if chance < 0.2:
        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(lambda same: list(write(target, same)), [batch, batch]))
        assert outcomes == [[], []]
    else:
        assert write(target, batch) == []
        if chance < 0.4:
            assert write(target, batch) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("write", "consistency"),
    [(by_spark, "batch"), (by_spark, "table"), (staged, "batch")],
    indirect=["write"],
)
def test_a_clone_holds_the_same_rows_after_every_batch(
    given: Given, database: Database, seed: int, consistency: str, write: Write
) -> None:
    given.deliver(KEYED, WHOLE)
    target = given.target(consistency=consistency)
    model = Model(given.spool, seed)
    cut_differently = given.start
    for number in range(BATCHES):
        for _ in range(model.chance.randrange(1, 4)):
            end = model.transaction(model.chance.randrange(1, 12))
        # After a restart batches may begin anywhere before the position that the destination has.
        batch = given.batch(end, cut_differently if number % 3 == 2 else given.start)
        write_somehow(target, batch, model.chance.random(), write)
        cut_differently, given.start = given.start, end
        assert target.position("eu") == end
        assert Counter(content(database, KEYED, "app")) == Counter(model.rows.values())
        assert Counter(content(database, WHOLE, "app")) == model.bag
    assert [recorded.position for recorded in target.recorded("eu").values()] == [None, None]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_holds_every_version(given: Given, database: Database, seed: int, write: Write) -> None:
    given.deliver(KEYED, kind=Kind.HISTORY)
    given.spool.learn(WHOLE)
    target = given.target()
    model = Model(given.spool, seed)
    for _ in range(BATCHES):
        for _ in range(model.chance.randrange(1, 4)):
            end = model.transaction(model.chance.randrange(1, 12))
        write_somehow(target, given.batch(end), model.chance.random(), write)
        given.start = end
        found = content(database, KEYED, "app", ", kvsz_start, kvsz_end, kvsz_deleted")
        assert sorted(found, key=repr) == model.history()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("piece", [2, 3])
def test_a_transaction_in_pieces_comes_to_the_same_versions(
    given: Given, database: Database, seed: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that changes in several pieces, goes and comes back, is given up for another; and truncates."""
    held: list[int] = []

    def counted(changes: Sequence[pa.RecordBatch], *more: Any) -> Sequence[Versions | Truncated]:
        held.append(sum(batch.num_rows for batch in changes))
        return versions(changes, *more)

    monkeypatch.setattr(apply, "versions", counted)
    monkeypatch.setattr(apply, "CHUNK_ROWS", piece)
    monkeypatch.setattr(staging, "LARGE", 1)
    given.deliver(KEYED, kind=Kind.HISTORY)
    given.spool.learn(WHOLE)
    target = given.target()
    model = Model(given.spool, seed)
    for _ in range(BATCHES):
        for _ in range(model.chance.randrange(1, 3)):
            end = model.transaction(model.chance.randrange(1, 30))
        assert staged(target, given.batch(end)) == []
        given.start = end
        found = content(database, KEYED, "app", ", kvsz_start, kvsz_end, kvsz_deleted")
        assert sorted(found, key=repr) == model.history()
    assert max(held) < 3 * piece


@pytest.mark.parametrize("seed", SEEDS)
def test_an_append_table_keeps_what_was_deleted(
    given: Given, database: Database, seed: int, write: Write
) -> None:
    given.deliver(KEYED, kind=Kind.APPEND)
    given.spool.learn(WHOLE)
    target = given.target()
    model = Model(given.spool, seed)
    for _ in range(BATCHES):
        end = model.transaction(model.chance.randrange(1, 25))
        write_somehow(target, given.batch(end), model.chance.random(), write)
        given.start = end
        assert Counter(content(database, KEYED, "app")) == Counter(model.ever.values())


def test_values_of_another_unique_column_may_be_swapped(
    given: Given, database: Database, write: Write
) -> None:
    database.execute(
        "create schema app",
        "create table app.users (id int primary key, name text unique, score numeric(10, 2))",
        "create table app.seats (taken_by int references app.users)",
    )
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None), ("2", "b", None), ("3", "c", "1"))
    first = given.batch(given.spool.commit())
    assert write(target, first) == []
    given.spool.update(USERS, ("1", "-", None)).update(USERS, ("2", "a", None))
    given.spool.update(USERS, ("1", "b", None)).delete(USERS, ("3", None, None))
    second = given.batch(given.spool.commit(), first.end)
    assert write(target, second) == []
    assert database.query("select id, name from app.users order by id") == [(1, "b"), (2, "a")]
    given.spool.truncate(USERS).insert(USERS, ("4", "a", None))  # others reference the table
    assert write(target, given.batch(given.spool.commit(), second.end)) == []
    assert database.query("select id, name from app.users") == [(4, "a")]


def test_new_rows_give_way_to_the_table_where_their_keys_are_there_already(
    given: Given, database: Database, write: Write
) -> None:
    database.execute(
        "create schema app",
        "create table app.users (id int primary key, name text, score numeric(10, 2))",
        "insert into app.users values (1, 'somebody else', 0), (3, 'untouched', 3)",
    )
    given.deliver(USERS)
    target = given.target(tables={"public.users": {}})
    given.spool.insert(USERS, ("1", "a\tb", "1.5"), ("2", None, None))
    assert write(target, given.batch(given.spool.commit())) == []
    rows = database.query("select id, name, score::text from app.users order by id")
    assert rows == [(1, "a\tb", "1.50"), (2, None, None), (3, "untouched", "3.00")]


def test_a_changed_row_that_the_destination_lost_is_added(
    given: Given, database: Database, write: Write
) -> None:
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None), ("2", "b", None), ("3", "c", None))
    first = given.batch(given.spool.commit())
    assert write(target, first) == []
    database.execute("delete from app.users where id = 2")
    given.spool.update(USERS, ("1", "A", None)).update(USERS, ("2", "B", "2"))
    given.spool.delete(USERS, ("3", None, None)).insert(USERS, ("4", "D", None))
    assert write(target, given.batch(given.spool.commit(), first.end)) == []
    rows = database.query("select id, name from app.users order by id")
    assert rows == [(1, "A"), (2, "B"), (4, "D")]

"""Several sources into one table, and readers while batches are written."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.destinations.protocol import Kind
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Column
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.changes.made import ORDERS, USERS, column_type
from tests.destinations.given import Given


@pytest.mark.parametrize("kind", [Kind.CLONE, Kind.HISTORY])
def test_two_sources_with_the_same_keys_do_not_touch_each_other(
    given: Given, database: Database, tmp_path: Path, kind: Kind
) -> None:
    database.execute(
        "create table users (id int primary key, name text, score numeric(10, 2))",
        "insert into users values (1, 'eu copied'), (2, 'eu copied')",
    )
    other = Given(given.spark, database, tmp_path / "us")
    given.deliver(USERS, kind=kind)
    other.deliver(USERS, kind=kind, source="us")
    target = given.target(("eu", "us"), source_column="Von wo")
    end = other.spool.insert(USERS, ("1", "us", None), ("2", "us", "2"), ("3", "us", None)).commit()
    assert target.write(other.batch(end, source="us")) == []
    other.start = end
    given.copy(target, database, USERS.id)
    end = given.spool.update(USERS, ("2", "eu changed", None), unchanged=[2]).commit()
    target.begin("eu", end)
    target.hand_over("first", given.changes(USERS.id, given.start, end), end)
    given.start = end

    live = "" if kind is Kind.CLONE else " where kvsz_end > now()"
    rows = f'select "Von wo", id, name from app.users{live} order by 1, 2'
    us = [("us", 1, "us"), ("us", 2, "us"), ("us", 3, "us")]
    assert database.query(rows) == [("eu", 1, "eu copied"), ("eu", 2, "eu changed"), *us]

    given.spool.update(USERS, ("1", "eu moved", None), before=["2", None, None], before_kind=BeforeKind.KEY)
    given.spool.truncate(USERS).insert(USERS, ("3", "eu", None))
    assert given.write(target, given.spool.commit()) == []
    assert database.query(rows) == [("eu", 3, "eu"), *us]
    given.spool.delete(USERS, ("3", None, None))
    assert given.write(target, given.spool.commit()) == []
    assert database.query(rows) == us
    assert target.position("us") == other.start
    assert [source for (source,) in database.query("select source from penstock.progress order by 1")] == [
        "eu", "us",
    ]  # fmt: skip

    # One source renames a column; the other does later, or never.
    renamed = replace(
        USERS, version=2, columns=(*USERS.columns[:1], Column("nick", column_type("text")), USERS.columns[2])
    )
    other.evolve(renamed, SchemaChange(renamed=(("name", "nick"),)))
    end = other.spool.update(renamed, ("1", "us nick", None)).commit()
    assert target.write(other.batch(end, source="us")) == []
    given.spool.insert(USERS, ("1", "eu again", None))
    assert given.write(target, given.spool.commit()) == []
    both = f'select "Von wo", id, name, nick from app.users{live} order by 1, 2'
    assert [row[:2] + row[3:] if row[0] == "us" else row for row in database.query(both)] == [
        ("eu", 1, "eu again", None), ("us", 1, "us nick"), ("us", 2, "us"), ("us", 3, "us"),
    ]  # fmt: skip
    other.close()


def test_a_table_by_itself_asks_for_nothing_that_is_known_of_others(given: Given, database: Database) -> None:
    """The ledger of thousands of tables is not read for each of them."""
    given.deliver(USERS)
    target = given.target(consistency="table")
    given.spool.insert(USERS, ("1", "x", None))
    assert given.write(target, given.spool.commit()) == []
    database.execute(
        "insert into penstock.tables (pipeline, destination, source, table_id, source_table, target,"
        " schema_version, error) values ('shop', 'warehouse', 'eu', 77, 'o', 'o', 1, '\"of no kind\"')"
    )
    given.spool.insert(USERS, ("2", "y", None))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select count(*) from app.users") == [(2,)]


def test_a_reader_sees_only_whole_transactions_of_the_source(given: Given, database: Database) -> None:
    """Money moves between rows of two tables: its sum is right whenever one looks."""
    chance = random.Random(5)
    given.deliver(USERS, ORDERS)
    target = given.target()
    money: dict[tuple[int, int], int] = {(table, n): 100 for table in (0, 1) for n in range(30)}
    given.spool.insert(USERS, *((str(n), "x", "100") for n in range(30)))
    given.spool.insert(ORDERS, *((str(n), "100") for n in range(30)))
    assert given.write(target, given.spool.commit()) == []
    sums: set[int] = set()
    done = threading.Event()

    def look() -> None:
        with database.connect() as reader:
            while not done.is_set():
                row = reader.execute(
                    "select (select sum(score) from app.users) + (select sum(note::int) from app.orders)"
                ).fetchone()
                assert row is not None
                sums.add(int(row[0]))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(8):
            for _ in range(20):
                one, other = chance.sample(sorted(money), 2)
                amount = chance.randrange(50)
                for account, change in ((one, -amount), (other, amount)):
                    money[account] += change
                    if account[0]:
                        given.spool.update(ORDERS, (str(account[1]), str(money[account])))
                    else:
                        given.spool.update(USERS, (str(account[1]), "x", str(money[account])))
                end = given.spool.commit()
            assert given.write(target, end) == []
    finally:
        done.set()
        looking.join()
    assert sums == {6000}
    assert database.query("select id, score::int from app.users order by 1") == [
        (n, money[0, n]) for n in range(30)
    ]

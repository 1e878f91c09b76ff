"""The demo's shop, and the proof that a stream tells what it holds."""

from __future__ import annotations

import time
from dataclasses import replace

import psycopg
import pytest

from penstock.demo import shop
from penstock.demo.proof import Checksum, Rebuild, checksums
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.postgres.connection import connect
from penstock.spool.changes import Change
from tests.bed import Database, fresh_database
from tests.checker import Ledger

ORDERS = TableName("public", "orders")


@pytest.fixture
def open_shop(database: Database) -> Database:
    """A shop with goods and customers, published, before any business was done."""
    with connect(database.dsn) as connection:
        shop.create(connection)
        connection.execute("create publication shop for all tables")
        Ledger(database, "shop").create()
        shop.seed(connection, rows=100)
    return database


def is_order(change: Change) -> bool:
    return change.table is not None and change.table.name == ORDERS


def source(database: Database) -> dict[TableName, Checksum]:
    with connect(database.dsn) as connection:
        return checksums(connection, shop.TABLES)


def test_the_shop_begins_with_about_so_many_rows(open_shop: Database) -> None:
    assert sum(checksum.rows for checksum in source(open_shop).values()) == 100


def test_every_kind_of_business_is_done(open_shop: Database) -> None:
    load = shop.Load(open_shop.dsn, seed=1)
    load.run(transactions=150)
    kinds = {"sign-up", "order", "payment", "shipment", "cancellation", "new price"}
    assert set(load.done) == kinds
    assert load.done.total() == 150
    assert all(checksum.rows for checksum in source(open_shop).values())
    totals = open_shop.query(
        "select count(*) from orders o where total <> (select sum(quantity * price) from order_items"
        " where order_id = o.id)"
    )
    assert totals == [(0,)]


def test_the_same_seed_does_the_same_business(server: PostgresServer) -> None:
    found = []
    for seed in (1, 1, 2):
        for database in fresh_database(server):
            with connect(database.dsn) as connection:
                shop.create(connection)
                shop.seed(connection, rows=50, seed=seed)
            shop.Load(database.dsn, seed=seed).run(transactions=60)
            found.append(
                database.query("select id, customer_id, status, total, note from orders order by id")
                + database.query("select id, order_id, amount, details from payments order by id")
            )
    assert found[0] == found[1] != found[2]


def test_a_load_runs_at_its_rate_until_it_is_stopped(open_shop: Database) -> None:
    load = shop.Load(open_shop.dsn, rate=40)
    load.start()
    time.sleep(1)
    load.stop()
    assert 10 <= load.done.total() <= 60


def test_a_load_that_fails_says_so(open_shop: Database) -> None:
    load = shop.Load(open_shop.dsn, rate=1000)
    open_shop.execute("drop table payments")
    load.start()
    time.sleep(0.5)
    with pytest.raises(psycopg.errors.UndefinedTable):
        load.stop()


def test_the_stream_proves_equal_to_the_source(open_shop: Database) -> None:
    shop.Load(open_shop.dsn).run(transactions=100)
    rebuild = Rebuild()
    rebuild.apply(Ledger(open_shop, "shop").changes())
    assert not rebuild.problems
    assert {table: rebuild.checksum(table) for table in shop.TABLES} == source(open_shop)


def test_a_stream_that_lost_or_altered_something_does_not(open_shop: Database) -> None:
    shop.Load(open_shop.dsn).run(transactions=50)
    changes = Ledger(open_shop, "shop").changes()
    at = max(n for n, change in enumerate(changes) if is_order(change) and change.after)
    never = (*(changes[at].after or ())[:-1], "never")
    lost, altered = Rebuild(), Rebuild()
    lost.apply(changes[:at] + changes[at + 1 :])
    altered.apply([*changes[:at], replace(changes[at], after=never), *changes[at + 1 :]])
    assert lost.problems or lost.checksum(ORDERS) != source(open_shop)[ORDERS]
    assert altered.checksum(ORDERS) != source(open_shop)[ORDERS]


def test_a_checksum_does_not_depend_on_order_but_on_every_value() -> None:
    rows = [("1", "a"), ("2", None), ("2", None)]
    assert Checksum.of(rows) == Checksum.of(rows[::-1])
    assert Checksum.of(rows) != Checksum.of(rows[:2])
    assert Checksum.of([("1", None)]) != Checksum.of([("1", "")])
    assert Checksum.of([("12", "3")]) != Checksum.of([("1", "23")])

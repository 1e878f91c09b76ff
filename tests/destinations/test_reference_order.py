"""Rows that come and go with those that they reference, whatever the order of their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from penstock.destinations.postgres import PostgresTarget
from penstock.destinations.schema_change import SchemaChange
from penstock.model import TableSchema
from penstock.model.errors import ForeignKeyRefused, RowRefused, RowsReferenced
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.changes.made import ORDERS, USERS, table
from tests.destinations.given import CHILDREN, GRANDCHILDREN, TREE, Given

DEFERRED = "deferrable initially deferred"


def reference(database: Database, child: TableSchema, parent: TableSchema, how: str = "") -> None:
    database.execute(
        f"alter table app.{child.name.name} add constraint of_{child.name.name}"
        f" foreign key (parent) references app.{parent.name.name} {how}"
    )


def until_done(tables: Sequence[TableSchema], bring_up: Callable[[TableSchema], None]) -> None:
    """Try each by itself, as a pipeline does; some wait for others."""
    pending = list(tables)
    for _ in tables:
        for each in list(pending):
            try:
                bring_up(each)
                pending.remove(each)
            except (RowsReferenced, ForeignKeyRefused):
                continue
    assert pending == []


def start(given: Given, ordinary: str, *tables: TableSchema) -> PostgresTarget:
    given.deliver(*tables)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None)).insert(CHILDREN, ("10", "1"))
    assert given.write(target, given.spool.commit()) == []
    return target


def exchange(given: Given) -> None:
    """One user goes with its child, another comes with one."""
    given.spool.delete(CHILDREN, ("10", None)).delete(USERS, ("1", None, None))
    given.spool.insert(USERS, ("3", "three", None)).insert(CHILDREN, ("30", "3"))


@pytest.mark.parametrize("how", ["", "on delete cascade", DEFERRED])
@pytest.mark.parametrize("tables", [(USERS, CHILDREN), (CHILDREN, USERS)], ids=["parent", "child"])
def test_rows_come_and_go_together(
    given: Given, database: Database, ordinary: str, tables: tuple[TableSchema, ...], how: str
) -> None:
    target = start(given, ordinary, *tables)
    reference(database, CHILDREN, USERS, how)
    exchange(given)
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select id from app.users") == [(3,)]
    assert database.query("table app.children") == [(30, 3)]
    before = given.start
    given.spool.delete(USERS, ("3", None, None)).delete(CHILDREN, ("30", None))
    given.spool.insert(USERS, ("4", "four", None)).insert(CHILDREN, ("40", "4"))
    given.start = given.spool.commit()  # each table for itself, as after a stop
    until_done(tables, lambda each: target.catch_up(given.changes(each.id, before, given.start), given.start))
    assert database.query("table app.children") == [(40, 4)]
    assert database.query("select id from app.users") == [(4,)]


def test_a_row_that_came_while_its_table_waited_may_go_again(
    given: Given, database: Database, ordinary: str
) -> None:
    target = start(given, ordinary, USERS, CHILDREN)
    reference(database, CHILDREN, USERS)
    before = given.start
    exchange(given)
    end = given.spool.commit()
    with pytest.raises(RowsReferenced):
        target.catch_up(given.changes(USERS.id, before, end), end)
    assert database.query("select id from app.users order by 1") == [(1,), (3,)]
    given.spool.delete(CHILDREN, ("30", None)).delete(USERS, ("3", None, None))
    end = given.spool.commit()
    target.catch_up(given.changes(CHILDREN.id, before, end), end)
    target.catch_up(given.changes(USERS.id, before, end), end)
    assert database.query("select id from app.users") == []


@pytest.mark.parametrize("how", ["", "on delete cascade"])
def test_tables_that_are_copied_anew_make_room_for_each_other(
    given: Given, database: Database, ordinary: str, how: str
) -> None:
    database.execute(
        "create table users (id int primary key, name text, score numeric(10, 2))",
        "create table children (id int primary key, parent int)",
        "insert into users values (1, 'one'), (2, 'two')",
        "insert into children values (10, 1), (20, 2)",
    )
    given.deliver(USERS, CHILDREN)
    target = given.target(dsn=ordinary)

    def bring_up(copy: str) -> None:
        for each in (USERS, CHILDREN):
            given.copy(target, database, each.id, f"{copy} {each.id}")
        until_done(
            (USERS, CHILDREN),
            lambda each: target.hand_over(
                f"{copy} {each.id}", given.changes(each.id, given.start, given.start), given.start
            ),
        )

    bring_up("first")
    reference(database, CHILDREN, USERS, how)
    database.execute(
        "delete from users where id = 1",
        "delete from children where id = 10",
        "insert into users values (3, 'three')",
        "insert into children values (30, 3)",
    )
    bring_up("second")
    assert database.query("select id from app.users order by 1") == [(2,), (3,)]
    assert database.query("select id from app.children order by 1") == [(20,), (30,)]


def test_tables_that_are_emptied_are_filled_again(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    given.spool.truncate(USERS).truncate(CHILDREN).truncate(GRANDCHILDREN)
    given.spool.insert(USERS, ("3", "three", None)).insert(CHILDREN, ("30", "3"))
    assert given.write(family, given.spool.commit()) == []
    assert database.query("select id from app.users") == [(3,)]
    assert database.query("table app.children") == [(30, 3)]
    assert database.query("table app.grandchildren") == []


def test_a_row_gets_the_key_of_one_that_is_gone(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    given.spool.delete(GRANDCHILDREN, ("100", None)).delete(CHILDREN, ("10", None))
    given.spool.delete(USERS, ("1", None, None))
    given.spool.update(USERS, ("1", "two", None), before=["2", None, None], before_kind=BeforeKind.KEY)
    before = given.start
    stopped = given.write(family, given.spool.commit())
    for id, _ in stopped:  # it is tried again when the rows that reference it are gone
        family.catch_up(given.changes(id, before, given.start), given.start)
    assert [id for id, _ in stopped] in ([], [USERS.id])
    assert database.query("table app.children") == []


def test_a_schema_change_leaves_deferred_constraints_deferred(
    given: Given, database: Database, ordinary: str
) -> None:
    given.deliver(ORDERS, CHILDREN, GRANDCHILDREN)
    target = given.target(dsn=ordinary)
    given.spool.insert(ORDERS, ("1", "x")).insert(CHILDREN, ("1", None)).insert(GRANDCHILDREN, ("1", None))
    assert given.write(target, given.spool.commit()) == []
    reference(database, CHILDREN, GRANDCHILDREN, DEFERRED)
    reference(database, GRANDCHILDREN, CHILDREN, DEFERRED)
    given.spool.insert(ORDERS, ("2", "x"))
    given.spool.commit()
    columns = {column.name: column.type for column in ORDERS.columns}
    wider = table(ORDERS.id, str(ORDERS.name), columns | {"more": "int4"}, version=2)
    given.evolve(wider, SchemaChange(added=((wider.columns[-1], None),)))
    given.spool.insert(wider, ("3", "x", "1")).insert(CHILDREN, ("3", "3")).insert(GRANDCHILDREN, ("3", "3"))
    assert given.write(target, given.spool.commit()) == []


def test_a_deferred_constraint_stops_none_but_its_own_table(
    given: Given, database: Database, ordinary: str
) -> None:
    given.deliver(CHILDREN, GRANDCHILDREN, TREE)
    target = given.target(dsn=ordinary)
    given.spool.insert(CHILDREN, ("1", None)).insert(GRANDCHILDREN, ("1", None)).insert(TREE, ("1", "1"))
    assert given.write(target, given.spool.commit()) == []
    reference(database, CHILDREN, GRANDCHILDREN, DEFERRED)
    reference(database, GRANDCHILDREN, CHILDREN, DEFERRED)
    reference(database, TREE, TREE, DEFERRED)
    given.spool.insert(CHILDREN, ("3", "3")).insert(GRANDCHILDREN, ("3", "3")).insert(TREE, ("3", "99"))
    ((id, error),) = given.write(target, given.spool.commit())
    assert (id, type(error)) == (TREE.id, ForeignKeyRefused)


def test_a_table_with_deferred_constraints_is_handed_over_with_a_new_column(
    given: Given, database: Database, ordinary: str
) -> None:
    database.execute(
        "create table children (id int primary key, parent int)", "insert into children values (1, 1)"
    )
    given.deliver(USERS, CHILDREN)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None))
    assert given.write(target, given.spool.commit()) == []
    given.copy(target, database, CHILDREN.id)
    target.hand_over("first", given.changes(CHILDREN.id, given.start, given.start), given.start)
    reference(database, CHILDREN, USERS, DEFERRED)
    database.execute("insert into children values (2, 1)", "update children set parent = 1")
    given.copy(target, database, CHILDREN.id, "second")
    columns = {"id": "int4", "parent": "int4", "more": "int4"}
    wider = table(CHILDREN.id, str(CHILDREN.name), columns, version=2)
    given.evolve(wider, SchemaChange(added=((wider.columns[2], None),)))
    given.spool.insert(wider, ("3", "1", "7"))
    before, end = given.start, given.spool.commit()
    target.hand_over("second", given.changes(CHILDREN.id, before, end), end)
    assert database.query("table app.children order by id") == [(1, 1, None), (2, 1, None), (3, 1, 7)]


def test_the_row_that_is_refused_is_told_though_others_are_referenced(
    given: Given, database: Database, ordinary: str
) -> None:
    target = start(given, ordinary, USERS, CHILDREN)
    reference(database, CHILDREN, USERS)
    database.execute("alter table app.users add constraint short check (length(name) < 10)")
    given.spool.update(USERS, ("1", "uno", None)).insert(USERS, ("5", "much too long for it", None))
    ((_, error),) = given.write(target, given.spool.commit())
    assert type(error) is RowRefused
    assert (error.where["key"], "short" in error.reason) == ("id=5", True)


def test_a_row_that_others_reference_stays_until_they_are_gone(
    given: Given, database: Database, ordinary: str
) -> None:
    target = start(given, ordinary, USERS, CHILDREN)
    reference(database, CHILDREN, USERS, DEFERRED)
    before = given.start
    given.spool.delete(USERS, ("1", None, None))
    ((id, error),) = given.write(target, given.spool.commit())
    assert (id, type(error)) == (USERS.id, ForeignKeyRefused)
    assert database.query("select id from app.users") == [(1,)]
    database.execute("delete from app.children")
    target.catch_up(given.changes(USERS.id, before, given.start), given.start)
    assert database.query("select id from app.users") == []

"""Foreign keys at the destination, of a role that cannot keep them from acting."""

from __future__ import annotations

import pytest

from penstock.destinations.postgres import PostgresTarget
from penstock.model.errors import ForeignKeyRefused, RowsReferenced, WriteDenied
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.changes.made import ORDERS, USERS
from tests.destinations.given import CHILDREN, GRANDCHILDREN, TREE, Given


@pytest.mark.every_server
@pytest.mark.parametrize("action", ["cascade", "set null", "no action"])
def test_a_table_that_is_copied_anew_takes_no_rows_of_others_with_it(
    given: Given, database: Database, ordinary: str, action: str
) -> None:
    database.execute(
        "create table users (id int primary key, name text, score numeric(10, 2))",
        "insert into users values (1, 'one'), (2, 'two'), (3, 'three')",
    )
    given.deliver(USERS)
    target = given.target(dsn=ordinary)
    given.copy(target, database, USERS.id)
    target.hand_over("first", given.changes(USERS.id, given.start, given.start), given.start)
    database.execute(
        f"create table app.children (id int primary key, parent int references app.users on delete {action})",
        "insert into app.children values (1, 1), (2, 2)",
        "update users set name = 'changed' where id = 1",
        "delete from users where id = 3",
        "insert into users values (4, 'four')",
    )
    given.copy(target, database, USERS.id, "second")
    target.hand_over("second", given.changes(USERS.id, given.start, given.start), given.start)
    assert database.query("table users except table app.users") == []
    assert database.query("select count(*) from app.users") == [(3,)]
    assert database.query("select * from app.children order by 1") == [(1, 1), (2, 2)]


def test_a_truncate_waits_for_the_rows_that_would_go_with_it(
    given: Given, database: Database, ordinary: str
) -> None:
    given.deliver(USERS)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None))
    assert given.write(target, given.spool.commit()) == []
    database.execute(
        "create table app.children (id int primary key, parent int references app.users on delete cascade)",
        "insert into app.children values (1, 1)",
    )
    start = given.start
    given.spool.truncate(USERS).insert(USERS, ("2", "two", None))
    ((_, error),) = given.write(target, given.spool.commit())
    assert isinstance(error, RowsReferenced)
    assert "app.children" in error.reason
    assert database.query("select id from app.users order by 1") == [(1,), (2,)]
    database.execute("truncate app.children", "grant select on app.children to public")
    target.catch_up(given.changes(USERS.id, start, given.start), given.start)
    assert database.query("select id from app.users") == [(2,)]


def test_rows_stay_that_came_to_reference_another_row(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    given.spool.update(CHILDREN, ("10", "2")).update(TREE, ("10", "2"))
    given.spool.delete(USERS, ("1", None, None)).delete(TREE, ("1", None))
    assert given.write(family, given.spool.commit()) == []
    assert database.query("select id from app.users") == [(2,)]
    assert database.query("table app.children") == [(10, 2)]
    assert database.query("table app.grandchildren") == [(100, 10)]
    assert database.query("table app.tree order by id") == [(2, None), (10, 2), (100, 10)]


def test_rows_stay_when_the_key_that_they_reference_changes(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    """As under `on update cascade`: the source sends the rows that reference it as well, and not theirs."""
    given.spool.update(USERS, ("3", "three", None), before=["1", None, None], before_kind=BeforeKind.KEY)
    given.spool.update(CHILDREN, ("10", "3"))
    given.spool.update(TREE, ("7", None), before=["1", None], before_kind=BeforeKind.KEY)
    given.spool.update(TREE, ("10", "7"))
    assert given.write(family, given.spool.commit()) == []
    assert database.query("table app.users order by id") == [(2, "two", None), (3, "three", None)]
    assert database.query("table app.children") == [(10, 3)]
    assert database.query("table app.grandchildren") == [(100, 10)]
    assert database.query("table app.tree order by id") == [(2, None), (7, None), (10, 7), (100, 10)]


def test_rows_that_exchange_their_keys_take_none_with_them(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    for before, after in [("1", "3"), ("2", "1"), ("3", "2")]:
        row = [before, None, None]
        given.spool.update(USERS, (after, "moved", None), before=row, before_kind=BeforeKind.KEY)
    ((id, error),) = given.write(family, given.spool.commit())
    assert (id, type(error)) == (USERS.id, RowsReferenced)
    assert "app.children" in str(error)
    assert database.query("table app.children") == [(10, 1)]
    assert database.query("table app.grandchildren") == [(100, 10)]


def test_what_is_emptied_together_is_emptied_in_one_batch(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    given.spool.truncate(USERS).truncate(CHILDREN).truncate(GRANDCHILDREN)
    assert given.write(family, given.spool.commit()) == []
    assert database.query("table app.users") == []


def test_rows_go_where_a_foreign_key_of_somebodys_own_table_says_so(
    given: Given, database: Database, family: PostgresTarget
) -> None:
    database.execute(
        "create table app.notes (parent int references app.users on delete cascade)",
        "insert into app.notes values (2)",
    )
    given.spool.delete(USERS, ("2", None, None))
    assert given.write(family, given.spool.commit()) == []
    assert database.query("table app.notes") == []


@pytest.mark.parametrize("consistency", ["batch", "table"])
def test_a_deferred_foreign_key_stops_the_table_that_it_refuses(
    given: Given, database: Database, ordinary: str, consistency: str
) -> None:
    given.deliver(CHILDREN, USERS, ORDERS)
    target = given.target(dsn=ordinary, consistency=consistency)
    given.spool.insert(USERS, ("1", "one", None))
    assert given.write(target, given.spool.commit()) == []
    given.spool.insert(CHILDREN, ("10", "1"))
    assert given.write(target, given.spool.commit()) == []
    database.execute(
        "alter table app.children add constraint parents foreign key (parent) references app.users"
        " deferrable initially deferred"
    )
    given.spool.insert(CHILDREN, ("20", "2")).insert(USERS, ("3", "three", None)).insert(
        ORDERS, ("1", "here")
    )
    start = given.start
    ((id, error),) = given.write(target, given.spool.commit())
    assert (id, type(error)) == (CHILDREN.id, ForeignKeyRefused)
    assert "parents" in error.reason
    assert database.query("select id from app.users order by 1") == [(1,), (3,)]
    assert database.query("table app.orders") == [(1, "here")]
    with pytest.raises(ForeignKeyRefused, match="parents"):
        target.catch_up(given.changes(CHILDREN.id, start, given.start), given.start)
    given.spool.insert(USERS, ("2", "two", None))
    assert [id for id, _ in given.write(target, given.spool.commit())] in ([], [CHILDREN.id])
    target.catch_up(given.changes(CHILDREN.id, start, given.start), given.start)
    assert database.query("select id from app.children order by 1") == [(10,), (20,)]


def test_rows_come_in_any_order_of_their_tables(given: Given, database: Database, ordinary: str) -> None:
    given.deliver(GRANDCHILDREN, CHILDREN, USERS)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None))
    given.spool.insert(CHILDREN, ("10", "1")).insert(GRANDCHILDREN, ("100", "10"))
    assert given.write(target, given.spool.commit()) == []
    database.execute(
        "alter table app.children add foreign key (parent) references app.users",
        "alter table app.grandchildren add foreign key (parent) references app.children",
    )
    given.spool.insert(USERS, ("2", "two", None))
    given.spool.insert(CHILDREN, ("20", "2")).insert(GRANDCHILDREN, ("200", "20"))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select id from app.grandchildren order by 1") == [(100,), (200,)]
    assert database.query("select count(*) from penstock.tables where error is not null") == [(0,)]


def test_row_level_security_is_an_error_and_hides_no_row(
    given: Given, database: Database, ordinary: str
) -> None:
    given.deliver(USERS)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None), ("200", "two hundred", None))
    assert given.write(target, given.spool.commit()) == []
    database.execute(
        "alter table app.users force row level security",
        "alter table app.users enable row level security",
        "create policy seen on app.users using (id < 100) with check (true)",
    )
    given.spool.delete(USERS, ("200", None, None))
    ((_, error),) = given.write(target, given.spool.commit())
    assert isinstance(error, WriteDenied)
    assert "bypassrls" in error.remedy

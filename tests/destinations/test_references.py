"""Foreign keys at the destination, of a role that cannot keep them from acting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from penstock.model.errors import DestinationBusy
from tests.bed import Database
from tests.changes.made import USERS
from tests.destinations.given import Given


@pytest.fixture
def ordinary(database: Database) -> Iterator[str]:
    """The connection of a role that may not set session_replication_role."""
    role = f"cdc_{database.name}"
    database.execute(f"create role {role} login", f"grant create on database {database.name} to {role}")
    yield make_conninfo(database.dsn, user=role)
    database.execute(f"drop owned by {role} cascade", f"drop role {role}")


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
    assert isinstance(error, DestinationBusy)
    assert "app.children" in error.reason
    assert database.query("select id from app.users") == [(1,)]
    database.execute("truncate app.children", "grant select on app.children to public")
    target.catch_up(given.changes(USERS.id, start, given.start), given.start)
    assert database.query("select id from app.users") == [(2,)]

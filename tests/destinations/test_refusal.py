"""A row that the destination refuses stops its table, and nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import psycopg
import pytest

from penstock.destinations.postgres import PostgresTarget
from penstock.destinations.postgres.write import apply, tasks
from penstock.destinations.protocol import Kind
from penstock.model import TableId, TableSchema
from penstock.model.errors import (
    ConnectionFailed,
    OldRowUnsent,
    PenstockError,
    RowRefused,
    TargetUnfit,
    WriteDenied,
)
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.changes.made import ORDERS, USERS, table
from tests.destinations.given import Given

KEYLESS = table(3, "public.log", {"at": "int4", "said": "text"}, key=())


def names(database: Database) -> list[tuple[int, str]]:
    return database.query("select id, name from app.users order by id")


def only(stopped: Sequence[tuple[TableId, PenstockError]], of: TableSchema) -> PenstockError:
    assert [id for id, _ in stopped] == [of.id]
    found = pickle.loads(pickle.dumps(stopped[0][1]))
    assert isinstance(found, PenstockError)
    return found


@pytest.fixture
def target(given: Given, database: Database) -> PostgresTarget:
    """Users of the user's own making: short names, no one called `bad`."""
    database.execute(
        "create schema app",
        "create table app.users (id int primary key, name varchar(20) check (name <> 'bad'), score numeric)",
    )
    given.deliver(USERS, ORDERS)
    return given.target()


@pytest.mark.parametrize(
    ("name", "reason", "column"),
    [
        ("bad", 'new row for relation "users" violates check constraint "users_name_check"', None),
        ("x" * 21, "value too long for type character varying(20)", "name"),
    ],
)
@pytest.mark.parametrize("change", ["insert", "update"])
def test_a_refused_row_stops_its_table_and_is_named(
    given: Given, database: Database, target: PostgresTarget, change: str, name: str, reason: str, column: str
) -> None:
    given.spool.insert(USERS, *((str(n), f"user {n}", None) for n in range(100)))
    begun = given.spool.commit()
    assert given.write(target, begun) == []
    for n in range(0, 100, 3):
        given.spool.update(USERS, (str(n), "changed", None))
    if change == "insert":
        given.spool.insert(USERS, ("1000", "good", None), ("1001", name, None), ("1002", "good", None))
    else:
        given.spool.update(USERS, ("61", name, None))
    given.spool.insert(ORDERS, ("1", "an order"))
    error = only(given.write(target, given.spool.commit()), USERS)
    assert isinstance(error, RowRefused)
    assert error.reason == reason
    key = "id=1001" if change == "insert" else "id=61"
    assert (str(error.where["table"]), error.where["key"]) == ("public.users", key)
    assert error.where.get("column") == column
    assert "penstock retry" in str(error)
    assert names(database) == [(n, f"user {n}") for n in range(100)], "as it was"
    assert database.query("select note from app.orders") == [("an order",)], "the others go on"
    assert target.recorded("eu")[USERS.id].position == begun
    assert database.query("select position::text from penstock.progress where target = 'app.users'") == [
        (str(begun),)
    ]


def test_a_stopped_table_is_caught_up_after_the_cause_is_mended(
    given: Given, database: Database, target: PostgresTarget
) -> None:
    start = given.start
    given.spool.insert(USERS, ("1", "bad", None)).insert(ORDERS, ("1", "a"))
    first = given.batch(given.spool.commit())
    error = only(target.write(first), USERS)
    assert only(target.write(first), USERS).reason == error.reason, "told again, if the answer was lost"
    given.start = first.end
    given.spool.update(USERS, ("1", "good", "2"), before_kind=BeforeKind.NONE).insert(ORDERS, ("2", "b"))
    end = given.spool.commit()
    assert only(given.write(target, end), USERS).reason == error.reason, "nothing is left out"
    assert names(database) == []

    with pytest.raises(RowRefused):
        target.catch_up(given.changes(USERS.id, start, first.end), first.end)
    database.execute("alter table app.users drop constraint users_name_check")
    target.catch_up(given.changes(USERS.id, start, end), end)
    target.catch_up(given.changes(USERS.id, start, end), end)
    assert names(database) == [(1, "good")]
    assert target.recorded("eu")[USERS.id].position is None
    given.spool.insert(USERS, ("2", "next", None))
    assert given.write(target, given.spool.commit()) == []
    assert names(database) == [(1, "good"), (2, "next")]


def test_a_row_without_key_is_named_by_its_values(given: Given, database: Database) -> None:
    database.execute("create schema app", "create table app.log (at int check (at > 0), said text)")
    given.deliver(KEYLESS)
    given.spool.insert(KEYLESS, ("1", "fine"), ("-1", "x" * 100), ("2", None))
    error = only(given.write(given.target(), given.spool.commit()), KEYLESS)
    assert error.where["key"] == f"at=-1, said={'x' * 59}…"


@pytest.mark.parametrize(
    ("name", "reason"), [("bad", "violates check constraint"), ("x" * 21, "value too long for type")]
)
def test_a_row_of_a_history_is_named_also_where_its_transaction_comes_in_pieces(
    given: Given, database: Database, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "CHUNK_ROWS", 2)
    database.execute(
        "create schema app",
        """create table app.users (id int, name varchar(20) check (name <> 'bad'), score numeric,
               kvsz_start timestamptz, kvsz_end timestamptz, kvsz_deleted boolean)""",
    )
    given.deliver(USERS, kind=Kind.HISTORY)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None), ("2", "b", None)).update(USERS, ("1", "A", None))
    given.spool.insert(USERS, ("3", name, None), ("4", "d", None), ("5", "e", None))
    batch = given.batch(given.spool.commit())
    [stopped] = tasks.write_batch(tasks.BatchWork(target._endpoint, batch))
    assert isinstance(stopped.error, RowRefused)
    assert reason in stopped.error.reason
    assert stopped.error.where["key"] == "id=3"
    assert names(database) == []


@pytest.mark.parametrize("piece", [1, 250_000])
def test_a_value_that_was_never_sent_and_is_not_in_the_history_is_no_null(
    given: Given, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "CHUNK_ROWS", piece)
    given.deliver(USERS, kind=Kind.HISTORY)
    target = given.target()
    given.spool.insert(USERS, ("6", "x", None)).update(USERS, ("6", "y", None), unchanged=[2])
    given.spool.update(USERS, ("7", "x", None), unchanged=[2])
    batch = given.batch(given.spool.commit())
    [stopped] = tasks.write_batch(tasks.BatchWork(target._endpoint, batch))
    assert "`score` was not sent" in stopped.error.reason
    assert stopped.error.where["key"] == "id=7"


def test_a_value_that_was_never_sent_and_is_not_there_is_no_null(given: Given) -> None:
    given.deliver(USERS)
    given.spool.update(USERS, ("7", "x", None), unchanged=[2])
    error = only(given.write(given.target(), given.spool.commit()), USERS)
    assert isinstance(error, RowRefused)
    assert "`score` was not sent" in error.reason
    assert error.where["key"] == "id=7"


def test_a_table_that_does_not_fit_is_told_before_it_is_copied(given: Given, database: Database) -> None:
    database.execute(
        "create table users (id int primary key, name text, score numeric)",
        "create schema app",
        "create table app.users (id int primary key, extra int not null)",
    )
    given.deliver(USERS, ORDERS)
    with pytest.raises(TargetUnfit, match=r"no column `name`, `score`.*public.users.*app.users") as caught:
        given.copy(given.target(), database, USERS.id)
    assert "add column" in caught.value.remedy
    given.spool.insert(ORDERS, ("1", "a"))
    error = only(given.write(given.target(create_tables=False), given.spool.commit()), ORDERS)
    assert "does not exist" in error.reason


def test_what_the_role_may_not_do_is_an_error_of_that_table(given: Given, database: Database) -> None:
    role = f"writer_of_{database.name}"
    database.execute(
        f"create role {role} login; grant create on database {database.name} to {role}",
        "create schema app; create table app.users (id int primary key, name text, score numeric)",
        f"grant usage, create on schema app to {role}",
    )
    try:
        given.deliver(USERS, ORDERS)
        target = given.target(dsn=psycopg.conninfo.make_conninfo(database.dsn, user=role))
        given.spool.insert(USERS, ("1", "a", None)).insert(ORDERS, ("1", "a"))
        assert isinstance(only(given.write(target, given.spool.commit()), USERS), WriteDenied)
        assert database.query("select count(*) from app.orders") == [(1,)]
    finally:
        database.execute(f"drop owned by {role}", f"drop role {role}")


def test_a_destination_that_is_gone_stops_the_whole(given: Given, own_database: Database) -> None:
    given.deliver(USERS)
    target = given.target(dsn=own_database.dsn)
    given.spool.insert(USERS, ("0", "a", None))
    begun = given.spool.commit()
    assert given.write(target, begun) == []
    given.spool.insert(USERS, ("1", "a", None))
    end = given.spool.commit()
    own_database.server.stop()
    with pytest.raises(ConnectionFailed, match="destination warehouse"):
        given.write(target, end)
    own_database.server.start()
    assert target.position("eu") == begun
    assert given.write(target, end) == []
    assert target.position("eu") == end


def test_a_table_whose_first_row_was_refused_is_made_when_it_is_caught_up(
    given: Given, database: Database
) -> None:
    given.deliver(USERS)
    target = given.target()
    start = given.start
    given.spool.update(USERS, ("1", "x", None), unchanged=[2])
    only(given.write(target, given.spool.commit()), USERS)
    assert database.query("select to_regclass('app.users')") == [(None,)]
    end = given.spool.truncate(USERS).insert(USERS, ("2", "y", None)).commit()
    target.catch_up(given.changes(USERS.id, start, end), end)
    assert names(database) == [(2, "y")]


def test_a_reason_is_recorded_whatever_it_quotes(given: Given) -> None:
    """jsonb has no NUL, and texts have what looks as if it were an escaped one."""
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None))
    assert given.write(target, given.spool.commit()) == []
    target.hold("eu", USERS.id, given.start, RowRefused("\0 and \\u0000 and \\\\u0000", key="\\u0000\0"))
    error = target.recorded("eu")[USERS.id].error
    assert error is not None
    assert (error.reason, error.where["key"]) == (" and \\u0000 and \\\\u0000", "\\u0000")


@pytest.mark.parametrize("kind", Kind)
def test_a_row_that_an_update_does_not_tell_stops_a_table_of_any_kind(
    given: Given, database: Database, kind: Kind
) -> None:
    """Whatever the destination finds rows by: nobody knows whether it is what was sent."""
    given.deliver(KEYLESS, kind=kind, primary_key=("at",))
    target = given.target()
    given.spool.insert(KEYLESS, ("1", "a"))
    assert given.write(target, given.spool.commit()) == []
    given.spool.update(KEYLESS, ("1", "b"))
    assert isinstance(only(given.write(target, given.spool.commit()), KEYLESS), OldRowUnsent)
    assert database.query("select at, said from app.log") == [(1, "a")]


def test_what_is_never_deleted_need_not_be_told_of_deletes(given: Given, database: Database) -> None:
    given.deliver(KEYLESS, kind=Kind.APPEND)
    target = given.target()
    given.spool.insert(KEYLESS, ("1", "a")).delete(KEYLESS, ("1", None))
    assert given.write(target, given.spool.commit()) == []
    given.spool.delete(KEYLESS, ("2", None))
    assert given.write(target, given.spool.commit()) == []
    given.spool.insert(KEYLESS, ("3", "c"))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select at, said from app.log order by at") == [(1, "a"), (3, "c")]

"""Tables at the destination that are somebody else's: what is put on them does not run with our rights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from penstock.destinations.postgres.session import close_idle, session
from penstock.destinations.postgres.table.definition import with_equalities
from penstock.destinations.postgres.table.follow_schema import follow
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.table.trust import guard, unchanged
from penstock.destinations.schema_change import SchemaChange
from penstock.model import TableName
from penstock.model.errors import TargetUnfit
from penstock.model.phases import Phase
from tests.bed import Database
from tests.changes.made import ORDERS, USERS, table
from tests.destinations.given import Given
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.security.attacker import Attacker

TRIGGER = """
create trigger t after insert or update or delete on {table} for each row execute function mine.trap();
alter table {table} enable always trigger t;
"""


BUSY_TRIGGER = """
create function public.bad() returns trigger language plpgsql as $$
begin
    if new.id > 1 then raise exception 'gone' using errcode = '57P01'; end if;
    return new;
end $$;
create trigger t before insert on public.failing for each row execute function public.bad();
alter table public.failing enable always trigger t;
"""


def test_a_superuser_writes_to_nobodys_table_and_one_table_does_not_stop_the_others(
    spark: SparkSession, source: Database, destination: Database, attacker: Attacker, tmp_path: Path
) -> None:
    """Of these tables some are the attacker's at the destination: one that he made, one in his schema, and
    one in a schema that becomes his, which he drops and makes again. Others have rows, a trigger that says
    that the connection is lost, or a reader who does not end. The rest goes on."""
    names = ("good", "theirs", "typed", "payroll", "named", "failing", "read")
    source.execute(
        "create schema mine2",
        "create schema mine3",
        *(
            f"create table {name} (id int primary key, v text); insert into {name} values (1, 'a')"
            for name in (*(f"public.{name}" for name in names), "mine2.ours", "mine3.inside")
        ),
        "create type public.feeling as enum ('fine'); create type public.mood as enum ('fine')",
        "alter table public.typed add f public.feeling default 'fine', add m public.mood default 'fine'",
    )
    with attacker.connect(destination) as connection:
        connection.execute("create table public.theirs (id int primary key, v text)")
        connection.execute(TRIGGER.format(table="public.theirs").encode())
        connection.execute("create schema mine3")
        connection.execute(
            "create domain public.feeling as text check (mine.trap('the check of a domain') is not null)"
        )
        connection.execute(
            "create type public.mood as enum ('fine');"
            "create function mine.cast(text) returns public.mood language sql"
            " as $$ select (enum_range(null::public.mood))[length(mine.trap('cast')) - 3] $$;"
            "create cast (text as public.mood) with function mine.cast(text)"
        )
        connection.execute(
            "create function public.equal(int, int) returns boolean language sql"
            " as $$ select mine.trap('=') is not null $$;"
            "create operator public.= (leftarg = int, rightarg = int, function = public.equal)"
        )
    destination.execute(
        "create schema mine2",
        *(
            f"create table {name} (id int primary key, v text); insert into {name} values (7, 'own')"
            for name in ("payroll", "named")
        ),
        "create table failing (id int primary key, v text)",
        BUSY_TRIGGER,
    )
    sources = [{"name": "source", "dsn": source.dsn, "tables": {"exclude_schemas": ["mine"]}}]
    to = to_postgres(destination, tables={"public.named": {}})
    config = configuration(tmp_path, source, to, sources=sources)
    with running(config, spark) as pipeline:

        def said(table: str) -> str:
            return str(pipeline.tables()[table].error)

        ready = ("public.good", "mine2.ours", "public.typed", "public.named", "public.failing", "public.read")
        pipeline.until_phase(Phase.READY, *ready)
        pipeline.until_phase(Phase.ERRORED, "public.theirs", "mine3.inside", "public.payroll")
        assert f"the table at the destination belongs to {attacker.role}" in said("public.theirs")
        assert "trusted_owners" in said("public.theirs")
        assert f"the schema of the table at the destination belongs to {attacker.role}" in said(
            "mine3.inside"
        )
        assert "has rows that Penstock did not write" in said("public.payroll")
        destination.execute(
            "alter schema mine2 owner to " + attacker.role, "grant select on public.read to " + attacker.role
        )
        with attacker.connect(destination) as connection:
            connection.execute("drop table mine2.ours")
            connection.execute("create table mine2.ours (id int primary key, v text)")
            connection.execute(TRIGGER.format(table="mine2.ours").encode())
        with attacker.connect(destination) as reader:
            reader.execute("begin; select from public.read")
            source.execute("alter table public.read add w int")
            source.execute(
                *(
                    f"insert into {name} (id, v) values (2, 'b'); update {name} set v = 'c' where id = 1"
                    for name in ready
                )
            )
            pipeline.until_phase(Phase.ERRORED, "mine2.ours", "public.failing")
            assert "gone" in said("public.failing")
            good = [TableName("public", name) for name in ("good", "typed", "named")]
            pipeline.until_equal(source, destination, lambda: good)
            pipeline.until(lambda: "lock timeout" in said("public.read"))
        pipeline.until_equal(source, destination, lambda: [TableName("public", "read")])
    assert contents(destination, "mine2.ours") == contents(destination, "public.theirs") == []
    assert contents(destination, "public.payroll") == ["(7,own)"]
    assert not attacker.caught(destination)
    assert destination.query(
        "select distinct atttypid::regtype::text from pg_attribute where attrelid = 'public.typed'::regclass"
        " and attname in ('f', 'm')"
    ) == [("text",)], "a domain is no enum, whatever it is called, and an enum has casts"


@pytest.fixture
def ordinary(destination: Database) -> Iterator[str]:
    """The connection of an ordinary role that may write in the schema `app`, which is the attacker's."""
    role = f"cdc_{destination.name}"
    destination.execute(f"create role {role} login", f"grant create on database {destination.name} to {role}")
    yield make_conninfo(destination.dsn, user=role)
    destination.execute(f"drop owned by {role} cascade", f"drop role {role}")


@pytest.fixture
def given(spark: SparkSession, destination: Database, tmp_path: Path) -> Iterator[Given]:
    made = Given(spark, destination, tmp_path)
    yield made
    made.close()


def test_an_ordinary_role_writes_to_no_table_of_an_owner_who_is_not_listed(
    given: Given, destination: Database, attacker: Attacker, ordinary: str
) -> None:
    with attacker.connect(destination) as connection:
        connection.execute("create schema app; grant all on schema app to public")
        connection.execute("create table app.users (id int primary key, name text, score numeric)")
        connection.execute("grant all on app.users to public")
        connection.execute(TRIGGER.format(table="app.users").encode())
    given.deliver(USERS)
    end = given.spool.insert(USERS, ("1", "a", None)).commit()
    ((_, error),) = given.target(dsn=ordinary).write(given.batch(end))
    assert isinstance(error, TargetUnfit)
    assert f"belongs to {attacker.role}" in str(error)
    assert "trusted_owners" in error.remedy
    assert not attacker.caught(destination)
    trusting = given.target(dsn=ordinary, trusted_owners=[attacker.role])
    trusting.catch_up(given.changes(USERS.id, given.start, end), end)
    assert contents(destination, "app.users") == ["(1,a,)"]
    assert attacker.caught(destination)


def test_rows_that_went_to_another_table_which_had_the_name_are_taken_back(
    given: Given, destination: Database, attacker: Attacker, ordinary: str
) -> None:
    """The owner of the schema renames it while we write; also if he renames it back before we look."""
    with attacker.connect(destination) as connection:
        connection.execute("create schema app; grant all on schema app to public")
        connection.execute("create schema evil; grant all on schema evil to public")
        connection.execute("create table evil.users (id int primary key, name text, score numeric)")
        connection.execute("grant all on evil.users to public")
        connection.execute(TRIGGER.format(table="evil.users").encode())
    given.deliver(USERS)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "a", None))
    assert given.write(target, given.spool.commit()) == []
    destination.execute(
        "create function public.wait() returns trigger language plpgsql"
        " as $$ begin perform pg_advisory_xact_lock(4711); return null; end $$",
        "create trigger w after insert on app.users for each row execute function public.wait()",
    )
    swap = "alter schema app rename to hidden; alter schema evil rename to app"
    back = "alter schema app rename to evil; alter schema hidden rename to app"
    end = given.spool.insert(USERS, ("2", "b", None)).commit()
    with attacker.connect(destination) as connection, ThreadPoolExecutor(1) as other:
        connection.execute("select pg_advisory_lock(4711)")
        written = other.submit(target.write, given.batch(end))
        waiting = "select from pg_locks where locktype = 'advisory' and not granted and objid = 4711"
        while not destination.query(waiting):
            time.sleep(0.01)
        connection.execute(swap.encode())
        connection.execute("select pg_advisory_unlock(4711)")
        ((_, error),) = written.result(30)
        assert isinstance(error, TargetUnfit)
        assert "another table took its place" in str(error)
        connection.execute(back.encode())
        destination.execute("drop trigger w on app.users")
        place = TargetTable(given.deliveries[USERS.id])
        with session(ordinary, "d") as ours:
            guarded = guard(ours, place)
            connection.execute(swap.encode())
            ours.execute("insert into app.users values (3, 'c')")
            connection.execute(back.encode())
            with pytest.raises(TargetUnfit, match="another table"):
                unchanged(ours, guarded, place)
            ours.rollback()
    assert contents(destination, "app.users") == ["(1,a,)"]
    assert contents(destination, "evil.users") == []
    close_idle(ordinary)
    assert not attacker.caught(destination)


def test_what_is_looked_at_of_a_table(given: Given, destination: Database, attacker: Attacker) -> None:
    """Its partitions, and the one that rows move to; a foreign table, which cannot be locked."""
    destination.execute(
        "create schema app",
        "create table app.users (id int, name text, score numeric) partition by list (id)",
        "create table app.part partition of app.users default",
        f"alter table app.part owner to {attacker.role}",
        "create foreign data wrapper nothing",
        "create server nowhere foreign data wrapper nothing",
        "create foreign table app.orders (id bigint, note text) server nowhere",
        "create table app.old (sid text, id int, name text, score numeric)",
        "insert into app.old values ('eu', 1, 'a', null)",
        "create table app.new (sid text, id int, name text, score numeric)",
        f"alter table app.new owner to {attacker.role}",
    )
    given.deliver(USERS, ORDERS)
    users, orders = (TargetTable(given.deliveries[table.id], ours=False) for table in (USERS, ORDERS))
    belongs = f"belongs to {attacker.role}"
    with session(destination.dsn, "d") as ours:
        assert guard(ours, orders).oid
    with pytest.raises(TargetUnfit, match=belongs), session(destination.dsn, "d") as ours:
        guard(ours, users)
    moved = replace(users.delivery, target=TableName("app", "new"))
    place = TargetTable(moved, source_column="sid", ours=False)
    with pytest.raises(TargetUnfit, match=belongs), session(destination.dsn, "d") as ours:
        follow(ours, place, SchemaChange(target=TableName("app", "old")))
    close_idle(destination.dsn)


def test_a_table_with_rows_is_ours_by_its_mark_when_all_else_is_forgotten(
    given: Given, destination: Database
) -> None:
    given.deliver(USERS)
    target = given.target()
    end = given.spool.insert(USERS, ("1", "a", None)).commit()
    assert target.write(given.batch(end)) == []
    target.tear_down()
    again = given.target()
    assert again.write(given.batch(end)) == []
    again.tear_down()
    destination.execute("comment on table app.users is null")
    ((_, error),) = given.target().write(given.batch(end))
    assert "has rows that Penstock did not write" in str(error)


def test_keys_of_an_extensions_type_are_found_by_its_own_equality(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    for database in (source, destination):
        database.execute("create extension citext")
    source.execute(
        "create table mails (mail citext primary key, n int)",
        "insert into mails select 'Mail' || i, i from generate_series(1, 100) i",
    )
    config = configuration(tmp_path, source, to_postgres(destination))
    tables = [TableName("public", "mails")]
    with running(config, spark) as pipeline:
        pipeline.until_equal(source, destination, lambda: tables)
        source.execute(
            "update mails set n = n + 1 where mail < 'mail3'",
            "delete from mails where mail = 'MAIL77'",
            "update mails set mail = upper(mail::text)::citext where n > 90",
            "insert into mails values ('new', 1)",
        )
        pipeline.until_equal(source, destination, lambda: tables)
        assert destination.query(
            "select atttypid::regtype::text from pg_attribute where attrelid = 'mails'::regclass"
            " and attname = 'mail'"
        ) == [("citext",)]


def test_the_equality_of_a_domain_is_that_of_what_it_is_at_last(given: Given, destination: Database) -> None:
    destination.execute(
        "create extension citext",
        "create domain mail as citext; create domain private as mail; create domain own as private",
        "create schema app; create table app.users (id own primary key, name text, score numeric)",
    )
    given.deliver(table(1, "public.users", {"id": "text", "name": "text", "score": "numeric"}))
    with session(destination.dsn, "d") as ours:
        place = with_equalities(ours, TargetTable(given.deliveries[USERS.id], ours=False))
    close_idle(destination.dsn)
    assert place.equalities == (("id", "public", "="),)

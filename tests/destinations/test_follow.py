"""Schema changes of the source, followed at the destination between the rows before and those after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations.protocol import Kind, Run, TableChanges
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Column, ColumnType, ReplicaIdentity, TableName
from penstock.model.errors import TargetUnfit
from penstock.model.visibility import Visibility
from tests.bed import Database
from tests.changes.made import USERS, column_type, table
from tests.destinations.given import Given

VARCHAR = ColumnType(1043, "varchar", 24)


def columns(database: Database, name: str) -> list[tuple[Any, ...]]:
    return database.query(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        name,
    )


def test_every_sort_of_change_in_one_batch(given: Given, database: Database) -> None:
    first = table(1, "public.users", {"id": "int4", "a": "text", "b": "text", "gone": "text"})
    given.deliver(first)
    target = given.target()
    given.spool.insert(first, ("1", "is a", "is b", "x"), ("2", None, "b", "y")).commit()
    swapped = table(1, "public.users", {"id": "int4", "b": "text", "a": "text", "new": "int4"}, 2)
    given.evolve(
        swapped,
        SchemaChange(added=((swapped.columns[3], "7"),), dropped=("gone",), renamed=(("a", "b"), ("b", "a"))),
    )
    given.spool.insert(swapped, ("3", "B", "A", None)).update(swapped, ("2", "new b", "new a", "8")).commit()
    wider = table(1, "public.renamed", {"id": "int8", "b": VARCHAR, "a": "text", "new": "int4"}, 3)
    change = SchemaChange(retyped=wider.columns[:2], target=TableName("app", "users"))
    given.evolve(wider, change, target=TableName("else", "renamed"))
    given.deliveries[first.id] = replace(given.deliveries[first.id], target=TableName("app", "users"))
    end = given.spool.insert(wider, ("5000000000", "b", "a", "1")).commit()
    batch = given.batch(end)
    (changes,) = batch.tables
    last = replace(changes.runs[-1].delivery, target=TableName("else", "renamed"))
    changes = replace(changes, runs=(*changes.runs[:-1], replace(changes.runs[-1], delivery=last)))
    assert target.write(replace(batch, tables=(changes,))) == []
    assert target.write(replace(batch, tables=(changes,))) == []
    assert columns(database, '"else".renamed') == [
        ("id", "bigint"), ("b", "character varying(20)"), ("a", "text"), ("new", "integer"),
    ]  # fmt: skip
    assert database.query('select id, a, b, new from "else".renamed order by id') == [
        (1, "is b", "is a", 7), (2, "new a", "new b", 8), (3, "A", "B", None), (5000000000, "a", "b", 1),
    ]  # fmt: skip
    assert database.query("select to_regclass('app.users')") == [(None,)]
    assert target.recorded("eu")[first.id].version == 3
    given.start = end


def test_another_key_becomes_the_primary_key(given: Given, database: Database) -> None:
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None), ("2", "b", None))
    assert given.write(target, given.spool.commit()) == []
    by_name = table(1, "public.users", {"id": "int4", "name": "text", "score": "numeric"}, 2, key=("name",))
    given.evolve(by_name, SchemaChange())
    given.spool.update(by_name, (None, "a", "5")).insert(by_name, ("2", "c", None))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select id, name, score::int from app.users order by name") == [
        (None, "a", 5), (2, "b", None), (2, "c", None),
    ]  # fmt: skip
    none = replace(by_name, version=3, identity=ReplicaIdentity.FULL)
    none = replace(none, columns=tuple(replace(column, key=True) for column in none.columns))
    given.evolve(none, SchemaChange())
    given.spool.insert(none, ("2", "c", None), ("3", None, None))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select count(*) from app.users") == [(5,)]


@pytest.mark.parametrize("by_copy", [False, True])
def test_what_is_left_of_a_key_that_lost_a_column_may_be_null(
    given: Given, database: Database, by_copy: bool
) -> None:
    """PostgreSQL drops such a key with the column, and leaves the others of it not null."""
    pair = table(1, "public.pair", {"a": "int4", "b": "int4", "c": "text"}, key=("a", "b"))
    given.deliver(pair)
    target = given.target()
    given.spool.insert(pair, ("1", "1", "x"))
    assert given.write(target, given.spool.commit()) == []
    single = table(1, "public.pair", {"b": "int4", "c": "text", "id": "int4"}, 2, key=("id",))
    if by_copy:
        database.execute(
            "create table pair (b int, c text, id int primary key)", "insert into pair values (null, 'y', 2)"
        )
        given.spool.learn(single)
        given.deliveries[pair.id] = replace(given.deliveries[pair.id], table=single)
        given.copy(target, database, pair.id)
        target.hand_over("first", given.changes(pair.id, given.start, given.start), given.start)
    else:
        given.evolve(single, SchemaChange(added=((single.columns[2], "1"),), dropped=("a",)))
        given.spool.delete(single, (None, None, "1")).insert(single, (None, "y", "2"))
        assert given.write(target, given.spool.commit()) == []
    assert database.query("select b, c, id from app.pair") == [(None, "y", 2)]
    assert database.query("select indexdef from pg_indexes where schemaname = 'app'") == [
        ("CREATE UNIQUE INDEX pair_pkey ON app.pair USING btree (id)",)
    ]


def test_in_a_history_every_version_has_the_new_column(given: Given, database: Database) -> None:
    given.deliver(USERS, kind=Kind.HISTORY)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None)).commit()
    given.spool.update(USERS, ("1", "b", None)).commit()
    more = replace(USERS, version=2, columns=(*USERS.columns, Column("more", column_type("text"))))
    given.evolve(more, SchemaChange(added=((more.columns[3], "it's"),)))
    given.spool.update(more, ("1", "c", None, "own"))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select name, more from app.users order by kvsz_start") == [
        ("a", "it's"), ("b", "it's"), ("c", "own"),
    ]  # fmt: skip


def test_a_change_that_cannot_be_followed_stops_the_table_with_the_reason(
    given: Given, database: Database
) -> None:
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None))
    assert given.write(target, given.spool.commit()) == []
    database.execute("create view app.names as select name from app.users")
    less = replace(USERS, version=2, columns=(USERS.columns[0], USERS.columns[2]))
    given.evolve(less, SchemaChange(dropped=("name",)))
    given.spool.insert(less, ("2", None))
    begun, end = given.start, given.spool.commit()
    [(_, error)] = given.write(target, end)
    assert isinstance(error, TargetUnfit)
    assert "view app.names depends on column name" in error.reason
    database.execute("drop view app.names")
    target.catch_up(given.changes(USERS.id, begun, end), end)
    assert columns(database, "app.users") == [("id", "integer"), ("score", "numeric(10,2)")]
    assert database.query("select count(*) from app.users") == [(2,)]


def test_a_change_that_the_catalog_tells_is_followed_once(given: Given, database: Database) -> None:
    """Without a row, under a version below those of the stream, at the position where the stream stands."""
    given.deliver(USERS)
    target = given.target()
    given.spool.insert(USERS, ("1", "a", None))
    assert given.write(target, given.spool.commit()) == []
    more = replace(USERS, version=-2, columns=(*USERS.columns, Column("more", column_type("text"))))
    run = Run(
        replace(given.deliveries[USERS.id], table=more), (), SchemaChange(added=((more.columns[3], "x"),))
    )
    changes = TableChanges((run,), given.start)
    target.catch_up(changes, given.start)
    database.execute("update app.users set more = 'changed since'")
    target.catch_up(changes, given.start)
    assert database.query("select name, more from app.users") == [("a", "changed since")]
    assert target.recorded("eu")[USERS.id].version == -2


def test_a_batch_that_begins_before_a_change_already_followed(given: Given, database: Database) -> None:
    """It is cut differently after a restart: what was followed is not followed again."""
    given.deliver(USERS)
    target = given.target()
    start = given.start
    given.spool.insert(USERS, ("1", "a", None)).commit()
    more = replace(USERS, version=2, columns=(*USERS.columns, Column("more", column_type("text"))))
    given.evolve(more, SchemaChange(added=((more.columns[3], "x"),)))
    given.spool.update(more, ("1", "b", None, "own"))
    assert given.write(target, given.spool.commit()) == []
    given.spool.insert(more, ("2", "c", None, "own"))
    assert target.write(given.batch(given.spool.commit(), start)) == []
    assert database.query("select name, more from app.users order by id") == [("b", "own"), ("c", "own")]


def test_changes_that_a_copy_holds_are_not_followed_in_it(given: Given, database: Database) -> None:
    """The copy has the column already; the rows before that are all visible in its snapshot."""
    given.deliver(USERS)
    given.spool.insert(USERS, ("1", "a", None)).commit()
    more = replace(USERS, version=2, columns=(*USERS.columns, Column("more", column_type("text"))))
    given.evolve(more, SchemaChange(added=((more.columns[3], "x"),)))
    end = given.spool.insert(more, ("2", "b", None, "own")).commit()
    database.execute(
        "create table users (id int primary key, name text, score numeric(10, 2), more text)",
        "insert into users values (1, 'a', null, 'copied')",
    )
    given.deliveries[USERS.id] = replace(given.deliveries[USERS.id], table=replace(more, version=-1))
    target = given.target()
    given.copy(target, database, USERS.id)
    seen = Visibility(0x1100, 0x1100)  # transactions of made spools have their commit's position as id
    target.hand_over("first", given.changes(USERS.id, given.start, end, seen), end)
    assert database.query("select id, more from app.users order by id") == [(1, "copied"), (2, "own")]


def test_a_name_that_a_dropped_column_had_is_given_to_another(given: Given, database: Database) -> None:
    """In a table of ours the column goes; in a user's it stays, with the values that its name has now."""
    database.execute(
        "create schema app",
        "create table app.theirs (id int primary key, a text not null, b text, c text, note text)",
    )
    names = {"id": "int4", "a": "text", "b": "text", "c": "text"}
    for id, name in ((1, "ours"), (2, "theirs")):
        given.deliver(table(id, f"public.{name}", names))
    target = given.target()
    given.spool.insert(table(1, "public.ours", names), ("1", "a", "b", "c"))
    given.spool.insert(table(2, "public.theirs", names), ("2", "a", "b", "c"))
    assert given.write(target, given.spool.commit()) == []
    for id, name in ((1, "ours"), (2, "theirs")):
        after = table(id, f"public.{name}", {"id": "int4", "a": "text", "b": "text", "c": "text"}, 2)
        given.evolve(
            after,  # `a` went, `b` and `c` moved on, `c` is a new one
            SchemaChange(added=((after.columns[3], None),), dropped=("a",), renamed=(("c", "b"), ("b", "a"))),
        )
        given.spool.insert(after, ("3", "new a", "new b", "new c"))
    assert given.write(target, given.spool.commit()) == []
    new = (3, "new a", "new b", "new c")
    assert database.query("select id, a, b, c from app.ours order by id") == [(1, "b", "c", None), new]
    assert database.query("select id, a, b, c, note from app.theirs order by id") == [
        (2, "b", "c", None, None), (*new, None),
    ]  # fmt: skip


def test_of_several_sources_one_drops_a_column_and_makes_it_again(
    given: Given, database: Database, tmp_path: Path
) -> None:
    other = Given(given.spark, database, tmp_path / "us")
    given.deliver(USERS)
    other.deliver(USERS, source="us")
    target = given.target(("eu", "us"), source_column="source")
    given.spool.insert(USERS, ("1", "eu", None))
    assert given.write(target, given.spool.commit()) == []
    end = other.spool.insert(USERS, ("1", "us", None)).commit()
    assert target.write(other.batch(end, source="us")) == []
    again = replace(USERS, version=2, columns=(USERS.columns[0], USERS.columns[2], USERS.columns[1]))
    given.evolve(again, SchemaChange(added=((USERS.columns[1], None),), dropped=("name",)))
    given.spool.insert(again, ("2", None, "new"))
    assert given.write(target, given.spool.commit()) == []
    assert database.query("select source, id, name from app.users order by 1, 2") == [
        ("eu", 1, None), ("eu", 2, "new"), ("us", 1, "us"),
    ]  # fmt: skip
    other.close()

"""A full copy: made aside, handed over with the changes that it does not hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.destinations.postgres import PostgresTarget
from penstock.destinations.postgres.copy import table_copy
from penstock.destinations.postgres.table.declared_types import BINARY
from penstock.destinations.postgres.write.staging import copy_lines
from penstock.destinations.protocol import Kind, TableCopy
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Column, TableId, TableName
from penstock.model.errors import RowRefused, SnapshotLost
from penstock.postgres.snapshot import Snapshot
from penstock.postgres.types import TypeCatalog
from tests.bed import Database
from tests.changes.made import USERS, column_type
from tests.destinations.given import Given

VALUES = {
    "bool": "true",
    "int2": "-32768",
    "int4": "2147483647",
    "int8": "-9223372036854775808",
    "oid": "4294967295",
    "float4": "'1.17549e-38'",
    "float8": "'-Infinity'",
    "numeric": "'-0.00000000000000000000000000000000001'",
    "bit": "'1'",
    "varbit": "'10101'",
    "text": r"E'tab\t, newline\n, backslash \\ and \\N'",
    "varchar": "''",
    "bpchar": "'padded   '",
    "char": "'x'",
    "bytea": r"'\x00ff5c0a'",
    "json": """'{"b": 1,  "a": [null]}'""",
    "jsonb": """'{"b": 1, "a": [null]}'""",
    "uuid": "gen_random_uuid()",
    "date": "'4713-01-01 BC'",
    "time": "'24:00:00'",
    "timetz": "'12:00:00.000001+15:59'",
    "timestamp": "'infinity'",
    "timestamptz": "'2026-11-15 10:00:00.123456+05:30'",
    "interval": "'-1 year 2 mons -3 days 04:05:06.789'",
    "inet": "'192.168.0.1/24'",
    "cidr": "'2001:db8::/32'",
    "macaddr": "'08:00:2b:01:02:03'",
    "macaddr8": "'08:00:2b:01:02:03:04:05'",
}
"""An awkward one of each type that goes in binary."""

USERS_SQL = "create table users (id int primary key, name text, score numeric(10, 2))"


def columns_of(database: Database, table: str) -> tuple[Column, ...]:
    """As the source describes them; the key is `id`."""
    catalog = TypeCatalog(lambda: psycopg.connect(database.dsn, autocommit=True))
    found: list[tuple[Any, ...]] = database.query(
        "select attname, atttypid::int, atttypmod from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 order by attnum",
        table,
    )
    columns = tuple(Column(name, catalog.resolve(oid, mod), name == "id") for name, oid, mod in found)
    catalog.close()
    return columns


@pytest.fixture
def source(given: Given, database: Database) -> Database:
    """Users to be copied; in the destination's own database, in another schema."""
    database.execute(
        USERS_SQL, "insert into users select n, 'name ' || n, n / 3.0 from generate_series(1, 5000) n"
    )
    given.deliver(USERS)
    return database


def test_a_copy_becomes_the_table_with_the_changes_since(given: Given, source: Database) -> None:
    target = given.target()
    assert given.copy(target, source, USERS.id) == 5000
    assert source.query("select to_regclass('app.users')") == [(None,)], "not visible before"

    given.spool.update(USERS, ("1", "changed", None)).delete(USERS, ("2", None, None))
    end = given.spool.insert(USERS, ("5001", "new\tone", "1.50")).commit()
    changes = given.changes(USERS.id, given.start, end)
    target.begin("eu", end)
    target.hand_over("first", changes, end)
    target.hand_over("first", changes, end)  # its answer was lost

    source.execute(
        "update users set name = 'changed', score = null where id = 1",
        "delete from users where id = 2",
        "insert into users values (5001, E'new\\tone', 1.5)",
    )
    assert source.query("table users except table app.users") == []
    assert source.query("select count(*) from app.users") == [(5000,)]
    assert source.query("select indexdef from pg_indexes where schemaname = 'app'") == [
        ("CREATE UNIQUE INDEX users_pkey ON app.users USING btree (id)",)
    ]
    assert target.position("eu") == end
    recorded = target.recorded("eu")[USERS.id]
    assert (recorded.copy, recorded.version, recorded.position) == ("first", 1, None)
    assert source.query("select count(*) from pg_tables where tablename like 'copy%%'") == [(0,)]
    target.forget("eu", USERS.id)
    assert target.recorded("eu") == {}


def test_a_task_that_runs_again_or_twice_at_once_copies_nothing_twice(given: Given, source: Database) -> None:
    target = given.target()
    endpoint, delivery = target._endpoint, given.deliveries[USERS.id]
    [(oid,)] = source.query("select 'users'::regclass::oid")
    with Snapshot.open(source.dsn, TableId(oid)) as snapshot:
        (part,) = snapshot.ranges(USERS.column_names)
        copy = TableCopy("c", delivery, source.dsn, snapshot.name, (part,))
        with endpoint.session() as connection:
            place = table_copy.begin(connection, endpoint, copy)
        work = table_copy.CopyPart(endpoint, "c", place, 0, source.dsn, snapshot.name, part, "text")
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(table_copy.copy_part, [work] * 3))
        with endpoint.session() as connection:
            assert table_copy.finish(connection, place, "c") == 5000
        # Another attempt at the table replaces it; a task of the old one that still runs finds that out.
        with endpoint.session() as connection:
            table_copy.begin(connection, endpoint, replace(copy, id="d"))
        with pytest.raises(SnapshotLost):
            table_copy.copy_part(work)
    with pytest.raises(SnapshotLost):
        target.hand_over("c", given.changes(USERS.id, given.start, given.start), given.start)


def test_a_row_that_cannot_be_copied_is_told(given: Given, source: Database) -> None:
    source.execute(
        "create schema app",
        "create table app.users (id int primary key, name text check (name <> 'name 4711'), score numeric)",
    )
    with pytest.raises(RowRefused, match=r'"users" violates .*public\.users.*id=4711\W'):
        given.copy(given.target(), source, USERS.id)


def recopied(given: Given, source: Database, target: PostgresTarget, id: str) -> None:
    given.copy(target, source, USERS.id, id)
    target.hand_over(id, given.changes(USERS.id, given.start, given.start), given.start)


def test_a_table_that_is_renamed_after_its_copy_is_handed_over_under_its_new_name(
    given: Given, source: Database
) -> None:
    target = given.target()
    given.copy(target, source, USERS.id)
    before = given.deliveries[USERS.id].target
    named = replace(USERS, name=TableName("public", "people"), version=2)
    given.evolve(named, SchemaChange(target=before), target=TableName("app", "people"))
    end = given.spool.insert(named, ("5001", "new", "1.50")).commit()
    target.hand_over("first", given.changes(USERS.id, given.start, end), end)
    assert source.query("select count(*) from app.people") == [(5001,)]
    assert source.query("select to_regclass('app.users')") == [(None,)]


def test_a_second_copy_takes_the_place_of_the_first_and_follows_the_schema(
    given: Given, source: Database
) -> None:
    target = given.target()
    recopied(given, source, target, "one")
    source.execute("create view reader as select count(*) as n, min(id) as first from app.users")
    source.execute(
        "delete from users where id <= 10",
        "alter table users drop score, add more int default 3, alter name type varchar(100)",
    )
    name = Column("name", replace(column_type("text"), oid=1043, modifier=104))
    columns = (USERS.columns[0], name, Column("more", column_type("int4")))
    given.evolve(replace(USERS, version=2, columns=columns), SchemaChange())
    with source.connect() as reader:
        reader.execute("begin isolation level repeatable read; table reader")
        given.copy(target, source, USERS.id, "two")
        assert reader.execute("table reader").fetchone() == (5000, 1)
    target.hand_over("two", given.changes(USERS.id, given.start, given.start), given.start)
    assert source.query("table reader") == [(4990, 11)]
    assert source.query("select id, name, more from app.users except select id, name, more from users") == []
    assert source.query(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'app.users'::regclass and attnum > 0 and not attisdropped order by attname"
    ) == [("id", "integer"), ("more", "integer"), ("name", "character varying(100)")]


def test_a_second_copy_of_an_append_table_deletes_nothing(given: Given, source: Database) -> None:
    given.deliveries[USERS.id] = replace(given.deliveries[USERS.id], kind=Kind.APPEND)
    target = given.target()
    recopied(given, source, target, "one")
    source.execute(
        "delete from users where id = 1",
        "update users set name = 'b' where id = 2",
        "insert into users values (0)",
    )
    recopied(given, source, target, "two")
    assert source.query("select id, name from app.users where id < 4 order by id") == [
        (0, None), (1, "name 1"), (2, "b"), (3, "name 3"),
    ]  # fmt: skip


def test_a_second_copy_of_a_history_ends_only_what_changed(given: Given, source: Database) -> None:
    given.deliveries[USERS.id] = replace(given.deliveries[USERS.id], kind=Kind.HISTORY)
    target = given.target()
    recopied(given, source, target, "one")
    source.execute(
        "delete from users where id = 1",
        "update users set name = 'b' where id = 2",
        "insert into users values (0)",
    )
    recopied(given, source, target, "two")
    ever = "kvsz_start = '1900-01-01 00:00+00'", "kvsz_end = '9999-01-01 00:00+00'"
    assert source.query(
        f"select id, name, {ever[0]}, {ever[1]}, kvsz_deleted from app.users where id < 4"
        " order by id, kvsz_start"
    ) == [
        (0, None, False, True, False),
        (1, "name 1", True, False, True),
        (2, "name 2", True, False, False),
        (2, "b", False, True, False),
        (3, "name 3", True, True, False),
    ]
    assert source.query("select count(*) from app.users") == [(5002,)]


def test_nothing_to_copy_leaves_what_is_there(given: Given, source: Database) -> None:
    source.execute("create schema app", "create table app.users as table users")
    target = given.target(create_tables=False)
    copy = TableCopy("none", given.deliveries[USERS.id], source.dsn, "", ())
    assert target.copy_table(copy) == 0
    target.hand_over("none", given.changes(USERS.id, given.start, given.start), given.start)
    assert source.query("select count(*) from app.users") == [(5000,)]


def test_rows_that_spark_made_are_copied(given: Given, source: Database) -> None:
    target = given.target()
    names = list(USERS.column_names)
    rows = given.spark.createDataFrame(
        [(str(n), "a\\b\t" if n else None, None) for n in range(50)], ", ".join(f"{n} string" for n in names)
    ).repartition(3)
    copy = TableCopy("made", given.deliveries[USERS.id], source.dsn, "", (), rows=rows)
    assert target.copy_table(copy) == 50
    target.hand_over("made", given.changes(USERS.id, given.start, given.start), given.start)
    assert source.query("select name, count(*) from app.users group by name order by 2") == [
        (None, 1), ("a\\b\t", 49),
    ]  # fmt: skip


def test_every_type_is_declared_as_the_source_has_it(given: Given, database: Database) -> None:
    """Copied from a table of many types, values and declarations are the same."""
    declared = [
        "numeric(10,2)", "character varying(20)", "character(5)", "timestamp(3) without time zone", "bit(3)",
        "interval day to second(2)", "integer[]", "numeric(5,1)[]", "jsonb", "int4range", "uuid", "\"char\"",
        "time(0) with time zone", "xml", "tsvector", "point",
    ]  # fmt: skip
    columns = ", ".join(f"c{n} {type}" for n, type in enumerate(declared))
    database.execute(
        "create domain price as numeric(8,3)",
        "create type mood as enum ('sad', 'glad')",
        f"create table types (id int primary key, {columns}, d price, m mood, ms mood[], ds price[])",
        "insert into types (id, c0, c6, d, m, ms) values (1, 2.5, '{1,NULL}', 1.5, 'sad', '{glad,sad}')",
    )
    types = columns_of(database, "types")
    given.deliver(replace(USERS, name=replace(USERS.name, name="types"), columns=types))
    target = given.target()
    recopied(given, database, target, "types")
    assert database.query(
        "select format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'app.types'::regclass and attnum > 1 order by attnum"
    ) == [(one,) for one in [*declared, "numeric(8,3)", "mood", "mood[]", "numeric(8,3)[]"]]
    assert database.query("select t::text from types t") == database.query("select t::text from app.types t")


@pytest.mark.parametrize("format", ["binary", "text"])
def test_values_arrive_as_they_are_in_binary_and_as_text(
    given: Given, database: Database, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert VALUES.keys() == BINARY
    columns = ", ".join(f'c_{name} "{name}", a_{name} "{name}"[]' for name in VALUES)
    values = ", ".join(f'{value}, array[null, {value}]::"{name}"[]' for name, value in VALUES.items())
    more = "create type mood as enum ('sad')" if format == "text" else "select"
    database.execute(
        more,
        f"create table every (id int primary key, {columns}, m {'mood' if format == 'text' else 'int'})",
        f"insert into every select n, {values} from generate_series(1, 3) n",
        "insert into every (id, c_text, c_bytea) select 4, repeat('wide ', 40000), repeat('x', 99999)::bytea",
    )
    given.deliver(
        replace(USERS, name=replace(USERS.name, name="every"), columns=columns_of(database, "every"))
    )
    used: list[Any] = []

    def noted(*given: Any) -> int:
        used.append(given[-1])
        return copy_lines(*given)

    monkeypatch.setattr(table_copy, "copy_lines", noted)
    recopied(given, database, given.target(), "every")
    assert used == [format]
    there, here = ("select e::text from every e order by id", "select e::text from app.every e order by id")
    assert database.query(here) == database.query(there)

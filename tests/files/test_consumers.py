"""The examples that follow the registry: they rebuild what the source has, whatever was done to it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from penstock.postgres.connection import connect
from tests.bed import Database
from tests.checker import rows_difference, text_rows
from tests.files.test_files import to_files
from tests.pipeline.running import Running, configuration, running

EXAMPLES = Path(__file__, "../../../examples").resolve()

Rows = tuple[tuple[str, ...], list[tuple[str | None, ...]]]

USERS = TableName("public", "users")
ODD = TableName("Od d", 'ta"ble')
LOG = TableName("public", "log")

BEGINNING = (
    "create table users (id int primary key, name text, about text, more text)",
    "alter table users alter about set storage external, alter more set storage external",
    """insert into users values
       (1, '', null, ''), (2, null, '', null), (3, e'a "quoted"\\nli,ne', '\\N', '"'),
       (4, 'NULL', ' ', e'\\r'), (5, e'cr\\rlf\\r\\n', e'tab\\tback\\\\slash', '#'),
       (6, 'Ünï ☃ 🐘', '""', ','), (7, '''', e'\\n', '\\.')""",
    """insert into users select i, 'name ' || i,
       repeat('long ' || i, 600), null from generate_series(10, 50) i""",
    'create schema "Od d"',
    """create table "Od d"."ta""ble" ("k ""1"" x" text, "k,2" numeric, "it's" text, "a\\b" text, "nul l" text,
       primary key ("k ""1"" x", "k,2"))""",
    """alter table "Od d"."ta""ble" alter "it's" set storage external, alter "a\\b" set storage external""",
    """insert into "Od d"."ta""ble"
       select 'k' || i, 1.0, repeat('x', 5000), repeat('y', 5000), null from generate_series(1, 5) i""",
)
CHANGES = (
    """begin; update "Od d"."ta""ble" set "k,2" = 2; truncate "Od d"."ta""ble";
       insert into "Od d"."ta""ble"
       select 'k' || i, 1.0, repeat('X', 5000), repeat('Y', 5000), '' from generate_series(1, 5) i; commit""",
    "update users set name = 'x' where id < 20",
    "update users set name = null where id = 6; update users set about = null where id in (3, 11)",
    "update users set more = '' where id = 12; update users set name = '' where id = 12",
    "update users set id = id + 100 where id between 20 and 25",
    # Several keys in one transaction; the long value of `about` is sent with none of these.
    """begin; update users set id = 200 where id = 30; update users set name = 'once' where id = 200;
       update users set id = 201 where id = 200;
       update users set id = 202, name = 'more' where id = 201; commit""",
    # Two rows swap their keys, and a third takes the one that was in between.
    """begin; update users set id = -1 where id = 31; update users set id = 31 where id = 32;
       update users set id = 32 where id = -1; update users set id = -1 where id = 33;
       insert into users values (33, 'new', null, '');
       update users set name = 'there' where id = -1; commit""",
    "begin; delete from users where id = 34; insert into users values (34, 'again', '', null); commit",
    "begin; insert into users values (300, 'gone', null, null); delete from users where id = 300; commit",
    """update "Od d"."ta""ble" set "nul l" = '' where "k ""1"" x" = 'k1'""",
    """update "Od d"."ta""ble" set "k,2" = 1.00, "a\\b" = null where "k ""1"" x" = 'k2'""",
    """update "Od d"."ta""ble" set "k ""1"" x" = e'k\\n' where "k ""1"" x" = 'k3'""",
    """delete from "Od d"."ta""ble" where "k ""1"" x" = 'k4'""",
)
SCHEMA = (
    """begin; alter table users add column age int default 7;
       alter table users add column said text default e'it''s \\\\ ;\\n';
       alter table users rename column name to "ti ""tle";
       update users set age = null where id between 11 and 14;
       insert into users values (400, 'b', null, '', 3, ''); commit""",
    "alter table users drop column more",
    "update users set id = 401 where id = 15",
    "insert into users values (402, 'd', null, 5, null)",
)
TRUNCATE = (
    """begin; update users set id = 500 where id = 40; truncate users;
       insert into users values (40, 'after', repeat('long', 2000), null, null);
       update users set id = 41; commit""",
    "insert into users values (1, null, '', 4, ' ')",
)


def example(name: str) -> Any:
    """An example as a module: it is what a user would have, a file outside of the package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def in_duckdb(source: Database, file: Path) -> Callable[[TableName], Rows]:
    """Take what is new; what the tables are then."""
    example("files_duckdb").main(source.dsn, str(file))

    def rows(table: TableName) -> Rows:
        with duckdb.connect(str(file)) as duck:
            name = sql.Identifier(table.schema, table.name).as_string(None)
            known = "select 1 from duckdb_tables() where (schema_name, table_name) = (?, ?)"
            if not duck.execute(known, [table.schema, table.name]).fetchall():
                return (), []
            found = duck.execute(f"select * from {name}")
            return tuple(column[0] for column in found.description or ()), found.fetchall()

    return rows


def in_spark(spark: SparkSession, source: Database, folder: Path) -> Callable[[TableName], Rows]:
    example("files_spark").main(source.dsn, str(folder))

    def rows(table: TableName) -> Rows:
        found = spark.read.parquet(str(folder / quote(str(table), safe="")))
        return tuple(found.columns), [tuple(row) for row in found.collect()]

    return rows


def difference(source: Database, rows: Callable[[TableName], Rows], *tables: TableName) -> str:
    with connect(source.dsn) as connection:
        for table in tables:
            columns, expected = text_rows(connection, table)
            found_columns, found = rows(table)
            if columns != found_columns:
                return f"{table}: columns {found_columns} where the source has {columns}"
            if told := rows_difference(expected, found):
                return f"{table}: {told}"
    return ""


def until_rebuilt(pipeline: Running, source: Database, file: Path, *tables: TableName) -> None:
    pipeline.until_phase(Phase.READY, *map(str, tables))
    end = time.monotonic() + 30
    while told := difference(source, in_duckdb(source, file), *tables):
        if pipeline.error is not None:
            raise pipeline.error
        assert time.monotonic() < end, told
        time.sleep(0.1)


def test_tables_are_rebuilt_whatever_was_done_to_them(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    source.execute(*BEGINNING)
    tables, duck = (USERS, ODD), tmp_path / "copy.duckdb"
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        until_rebuilt(pipeline, source, duck, *tables)
        source.execute(*CHANGES)
        until_rebuilt(pipeline, source, duck, *tables)
        source.execute(*SCHEMA)
        until_rebuilt(pipeline, source, duck, *tables)
        assert not difference(source, in_spark(spark, source, tmp_path / "spark"), *tables)
        source.execute(*TRUNCATE)
        until_rebuilt(pipeline, source, duck, *tables)
    assert source.query(
        """select c.table_name, c.last_lsn = max(f.end_lsn) from cdc_registry.consumers c
           join cdc_registry.file_log f using (table_name) where consumer = 'duckdb' group by 1, c.last_lsn
           order by 1"""
    ) == [(str(ODD), True), (str(USERS), True)]


@pytest.mark.slow
def test_zstd_tables_without_a_key_and_consumers_that_come_too_late(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    source.execute(
        BEGINNING[0],
        BEGINNING[2],
        "create table log (a text, b text)",
        "alter table log replica identity full",
        "insert into log values ('a', null), ('a', null), ('a', ''), (null, null)",
    )
    to = to_files(tmp_path, compression={"algorithm": "zstd", "level": 3})
    duck = tmp_path / "copy.duckdb"
    with running(configuration(tmp_path, source, to), spark) as pipeline:
        until_rebuilt(pipeline, source, duck, USERS, LOG)
        source.execute(
            "insert into log values ('a', null), ('b', 'c')",
            "delete from log where ctid = (select min(ctid) from log where b is null and a = 'a')",
            "update log set b = b",
            "update log set b = 'd' where ctid = (select min(ctid) from log where b is null and a = 'a')",
            "update users set name = '' where name is null",
        )
        until_rebuilt(pipeline, source, duck, USERS, LOG)
    with pytest.raises(SystemExit, match=r"public\.log has no key"):
        in_spark(spark, source, tmp_path / "spark")
    source.execute("delete from cdc_registry.file_log where table_name = 'public.log'")
    assert not difference(source, in_spark(spark, source, tmp_path / "spark"), USERS)
    source.execute("delete from cdc_registry.file_log where file_type in ('schema', 'full_reload')")
    with pytest.raises(SystemExit, match=r"public\.users: .* copied anew"):
        in_duckdb(source, tmp_path / "late.duckdb")
    with pytest.raises(SystemExit, match=r"public\.users: .* copied anew"):
        in_spark(spark, source, tmp_path / "spark")

"""Columns that are not plain ones: keys that include others, generated ones, identities, exclusions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from penstock.pipeline.status import collect
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres

AT_THE_SOURCE = (
    "create table covering (id int, shape box, x int, primary key (id) include (shape, x))",
    "create table generated (id int primary key, a int, double int generated always as (a * 2) stored,"
    " own bigint generated always as (tableoid::bigint) stored)",
    "create table numbered (id int primary key, number int, label text)",
    "create table computed (id int primary key, a int, double int)",
    "create table whole (a int, double int)",
    "alter table whole replica identity full",
    "create table booked (id int primary key, during int4range,"
    " exclude using gist (during with &&) deferrable initially deferred)",
)
AT_THE_DESTINATION = (
    "create table numbered (id int generated always as identity primary key,"
    " number int generated always as identity, label text, serial bigint generated always as identity)",
    "create table computed (id int primary key, a int, double int generated always as (a * 2) stored,"
    " triple int generated always as (a * 3) stored not null)",
    "create table whole (a int, double int generated always as (a * 2) stored)",
    "create table booked (id int primary key, during int4range, exclude using gist (during with &&))",
)
ROWS = (
    "insert into covering values ({0}, '(1,1),(0,0)', 1)",
    "insert into generated values ({0}, {0})",
    "insert into numbered values ({0}, {0} + 100, 'n')",
    "insert into computed values ({0}, {0}, {0} * 2)",
    "insert into whole values ({0}, {0} * 2), ({0}, {0} * 2)",
    "insert into booked values ({0}, int4range({0} * 10, {0} * 10 + 10))",
)
CHANGES = (
    "update covering set x = 2, shape = '(2,2),(0,0)' where id = 1",
    "update generated set a = 7 where id = 1",
    "update numbered set number = 9, label = 'changed' where id = 1",
    "update computed set a = 5, double = 10 where id = 1",
    "delete from whole where a = 1",
    "begin; update booked set during = 'empty' where id = 1;"
    " update booked set during = int4range(10, 20) where id = 2;"
    " update booked set during = int4range(20, 30) where id = 1; commit",
)
TABLES = ("covering", "generated", "numbered", "computed", "whole", "booked")
COLUMNS = {"numbered": "id, number, label", "computed": "id, a, double"}


def rows(database: Database, table: str, source: Database) -> list[tuple[object, ...]]:
    """Of a source before 18 generated columns are not published, and do not arrive."""
    [(published,)] = source.query("select current_setting('server_version_num')::int >= 180000")
    if table == "generated" and not published:
        return database.query("select id, a from generated order by 1")
    return database.query(f"select {COLUMNS.get(table, '*')} from {table} order by 1")


@pytest.mark.every_server
def test_columns_of_every_kind_arrive(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(*AT_THE_SOURCE)
    destination.execute(*AT_THE_DESTINATION)
    for number in (1, 2):
        source.execute(*(statement.format(number) for statement in ROWS))
    named: dict[str, dict[str, str]] = {f"public.{table}": {} for table in TABLES}
    file = configuration(tmp_path, source, to_postgres(destination, tables=named))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *named)
        for number in range(3, 6):
            source.execute(*(statement.format(number) for statement in ROWS))
        source.execute(*CHANGES)
        pipeline.until(
            lambda: (
                [rows(source, t, source) for t in TABLES] == [rows(destination, t, source) for t in TABLES]
            )
        )
    assert destination.query("select max(triple) from computed") == [(15,)]
    assert destination.query("select indexdef from pg_indexes where indexname = 'covering_pkey'") == [
        ("CREATE UNIQUE INDEX covering_pkey ON public.covering USING btree (id)",)
    ]


@pytest.mark.every_server
def test_rows_that_differ_in_a_generated_part_of_their_key_do_not_overwrite_each_other(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """From 18 on that part is published. Before, the table is left out until rows are told by all columns."""
    [(modern,)] = source.query("select current_setting('server_version_num')::int >= 180000")
    tables = ("composed", "indexed")
    source.execute(
        "create table composed (a int, b int, g int generated always as (b) stored, primary key (a, g))",
        "create table indexed (a int not null, b int, g int not null generated always as (b) stored)",
        "create unique index indexed_a_g_key on indexed (a, g)",
        "alter table indexed replica identity using index indexed_a_g_key",
        "create table other (id int primary key)",
        *(f"insert into {table} values (1, 1), (1, 2)" for table in tables),
    )
    names = [f"public.{table}" for table in tables]
    with running(configuration(tmp_path, source, to_postgres(destination)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.other", *(names if modern else ()))
        if not modern:
            left = {
                table["table"]: table["reason"]
                for table in collect(pipeline.config)["sources"][0]["left_out"]
            }
            assert left.keys() == set(names)
            assert all("a part of its key is not published" in why for why in left.values())
            source.execute(*(f"update {table} set b = b + 1 where b = 2" for table in tables))
            source.execute(*(f"alter table {table} replica identity full" for table in tables))
            pipeline.until_phase(Phase.READY, *names)
        source.execute(
            *(f"insert into {table} values (1, 8), (1, 9)" for table in tables),
            *(f"update {table} set a = 2 where b = 1" for table in tables),
            *(f"delete from {table} where b = 9" for table in tables),
        )
        query = "select a, b from {} order by 1, 2"
        pipeline.until(
            lambda: all(source.query(query.format(t)) == destination.query(query.format(t)) for t in tables)
        )


def test_a_value_that_is_no_text_stops_its_table_alone_and_is_told_by_column_and_key(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    """By a cast that only a superuser makes. Before 15 a `"char"` above 127 is such a value."""
    source.execute(
        "create cast (bytea as text) without function",
        "create table copied (id int primary key, a text)",
        "create table streamed (id int primary key, a text)",
        "create table other (id int primary key)",
        r"insert into copied values (1, 'one'), (2, '\xff41'::bytea::text)",
    )
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.streamed", "public.other")
        source.execute(
            "insert into streamed values (1, 'one')",
            r"insert into streamed values (2, '\xff41'::bytea::text)",
            "insert into other values (1)",
        )
        pipeline.until(lambda: contents(destination, "other") == ["(1)"])
        pipeline.until_phase(Phase.ERRORED, "public.copied", "public.streamed")
        for name in ("public.copied", "public.streamed"):
            error = pipeline.tables()[name].error
            assert error is not None
            assert (error.where["column"], error.where["key"]) == ("a", "id=2")
            assert "another value at the source" in error.remedy

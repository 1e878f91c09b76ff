"""`where`, `set` and `drop`: the same in the copy as in the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres

RULES = {
    "target": "app.people",
    "where": "country <> 'XX'",
    "set": {"email": "sha2(email, 256)", "initial": "upper(substring(name, 1, 1))", "age": "age + 1"},
    "drop": ["secret"],
}
EXPECTED = """
    select id, name, country, encode(sha256(email::bytea), 'hex'), age + 1, upper(substr(name, 1, 1))
      from person where country <> 'XX' order by id
"""
FOUND = "select id, name, country, email, age, initial from app.people order by id"


def expected(source: Database) -> list[Any]:
    return source.query(EXPECTED)


def found(destination: Database) -> list[Any]:
    if destination.query("select to_regclass('app.people')") == [(None,)]:
        return []
    return destination.query(FOUND)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_rows_are_masked_filtered_and_cut_in_copy_and_stream(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, identity: str
) -> None:
    source.execute(
        "create table person (id integer primary key, name text, secret text, country char(2), email text,"
        " age integer)",
        f"alter table person replica identity {identity}",
        "insert into person select n, 'name' || n, 's', case when n % 3 = 0 then 'XX' else 'DE' end,"
        " n || '@example.com', n from generate_series(1, 100) n",
    )
    file = configuration(tmp_path, source, to_postgres(destination, tables={"public.person": RULES}))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.person")
        assert found(destination) == expected(source)
        assert len(expected(source)) == 67
        source.execute(
            "update person set country = 'XX' where id in (1, 2)",  # leave the filter
            "update person set country = 'FR', name = null where id in (3, 6)",  # enter it
            "update person set age = age + 10 where id between 10 and 20",  # inside and outside
            "update person set id = id + 1000 where id in (4, 9)",  # under another key
            "delete from person where id in (5, 12)",
            "insert into person values (500, 'new', 's', 'DE', null, null), (501, 'out', 's', 'XX', '', 1)",
        )
        pipeline.until(lambda: found(destination) == expected(source))
        columns = destination.query(
            "select column_name, data_type from information_schema.columns where table_name = 'people'"
        )
        assert ("initial", "text") in columns
        assert "secret" not in dict(columns)


def test_a_wrong_expression_stops_its_table_with_what_spark_says(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)", "create table u (id integer primary key)")
    tables = {"public.t": {"where": "no_such_column > 1"}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.ERRORED, "public.t")
        pipeline.until_phase(Phase.READY, "public.u")
        error = pipeline.tables()["public.t"].error
        assert error is not None
        assert "no_such_column" in error.reason


def test_an_unsent_value_that_a_filter_needs_is_not_guessed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table doc (id integer primary key, n integer, body text)",
        "alter table doc alter body set storage external",
        "insert into doc values (1, 1, repeat('x', 9000))",
    )
    tables = {"public.doc": {"where": "length(body) > 10"}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.doc")
        source.execute("update doc set n = 2")
        pipeline.until_phase(Phase.ERRORED, "public.doc")
        error = pipeline.tables()["public.doc"].error
        assert error is not None
        assert error.where["column"] == "body"
        assert "replica identity full" in error.remedy
        assert len(contents(destination, "doc")) == 1

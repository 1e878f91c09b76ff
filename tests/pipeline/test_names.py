"""Table names that come back: dropped and made again, swapped, one table renamed to another's name.

A table is its oid. What stands under its name at a destination may be another table's of before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files
from tests.pipeline.running import Running, configuration, difference, running, to_postgres


def names(source: Database) -> list[TableName]:
    return [
        TableName("public", name)
        for (name,) in source.query("select tablename from pg_tables where schemaname = 'public'")
        if name != "ddl_history"
    ]


def until_both_are_equal(
    pipeline: Running, source: Database, destination: Database, consumed: Callable[[], Database]
) -> None:
    """At the PostgreSQL destination, and for a consumer of the files."""

    def told() -> str:
        return difference(source, destination, names(source)) or difference(source, consumed(), names(source))

    try:
        pipeline.until(lambda: not told(), seconds=40)
    except AssertionError as error:
        raise AssertionError(f"{told()}\n{error}") from None


def test_names_of_tables_that_come_back(
    spark: SparkSession, source: Database, destination: Database, into: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table made (id int primary key, a text)",
        "insert into made values (1, 'old'), (2, 'old')",
        *(
            f"create table {name} (id int primary key, {column} text);"
            f"insert into {name} select n, '{name} ' || n from generate_series(1, 10) n"
            for name, column in (
                ("orders", "a"),
                ("orders_new", "b"),
                ("bills", "a"),
                ("bills_new", "b"),
                ("one", "a"),
                ("other", "b"),
            )
        ),
    )
    consumer = Consumer(source, into)

    def consumed() -> Database:
        consumer.run()
        return into

    file = configuration(
        tmp_path, source, to_postgres(destination), to_files(tmp_path / "files"), retry={"attempts": 3}
    )
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *map(str, names(source)))
        until_both_are_equal(pipeline, source, destination, consumed)
        source.execute(
            "drop table made",
            "create table made (a int, key uuid primary key default gen_random_uuid(), c date)",
            "insert into made (a) values (3), (4)",
        )
        until_both_are_equal(pipeline, source, destination, consumed)
        source.execute(
            "begin; alter table orders rename to orders_old; alter table orders_new rename to orders; commit",
            "insert into orders values (11, 'new')",
            "begin; drop table bills; alter table bills_new rename to bills; commit",
            "insert into bills values (11, 'new')",
            """begin; alter table one rename to passing; alter table other rename to one;
               alter table passing rename to other; commit""",
            "insert into one values (11, 'of the other'); insert into other values (11, 'of the one')",
        )
        until_both_are_equal(pipeline, source, destination, consumed)
        source.execute(
            "insert into orders_old values (12, 'late'); delete from orders where id < 5",
            "update bills set b = 'again'; update one set b = null; truncate other",
            "alter table made add more int default 3; alter table made drop c; insert into made values (5)",
            "begin; drop table orders_old; alter table orders rename to orders_old; commit",
            "create table orders (id int primary key, c int); insert into orders values (1, 1)",
        )
        until_both_are_equal(pipeline, source, destination, consumed)
        assert {state.phase for state in pipeline.tables().values()} == {Phase.READY}

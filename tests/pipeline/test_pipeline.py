"""From a source to a PostgreSQL destination: copied, followed, and kept equal."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres


def test_tables_are_copied_and_then_followed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table item (id integer primary key, label text)",
        "insert into item select n, 'row ' || n from generate_series(1, 1000) n",
        "create table line (n integer, body text); alter table line replica identity full",
        "insert into line values (1, 'twice'), (1, 'twice'), (2, null)",
    )
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.item", "public.line")
        assert contents(destination, "item") == contents(source, "item")
        source.execute(
            "begin; update item set label = 'new' where id < 10; delete from item where id > 990;"
            "insert into item values (5000, null); delete from line where ctid = '(0,1)'; commit",
        )
        pipeline.until(lambda: contents(destination, "item") == contents(source, "item"))
        assert contents(destination, "line") == contents(source, "line")


def test_tables_come_and_go_while_it_runs(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table first (id integer primary key, a text)", "insert into first values (1, 'x')")
    file = configuration(tmp_path, source, to_postgres(destination))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.first")
        source.execute("create table second (id integer primary key)", "insert into second values (1), (2)")
        pipeline.until_phase(Phase.READY, "public.second")
        source.execute("insert into second values (3)", "insert into first values (2, 'y')")
        pipeline.until(lambda: len(contents(destination, "second")) == 3)
        source.execute("alter table first add b integer default 7, alter a type varchar(9)")
        pipeline.until(lambda: contents(destination, "first") == contents(source, "first"))
        source.execute("alter table second rename to third", "insert into third values (4)")
        pipeline.until(lambda: contents(destination, "third") == contents(source, "third"))
        source.execute("drop table first")
        pipeline.until(lambda: "public.first" not in pipeline.tables())
        assert len(contents(destination, "first")) == 2

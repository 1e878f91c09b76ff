"""No two tables arrive at one table of a destination."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.model.errors import ConfigError, TargetShared
from penstock.model.phases import Phase
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.shared_targets import collisions, may_collide
from tests.bed import Database
from tests.changes.made import ORDERS, USERS
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.pipeline.test_errors import penstock

BOTH = ("eu.t of source source by destination copy", "us.t of source source by destination copy")


def test_two_tables_with_one_target_are_refused_by_name_before_anything_is_made(
    source: Database, destination: Database, tmp_path: Path
) -> None:
    for schema in ("eu", "us"):
        source.execute(f"create schema {schema}", f"create table {schema}.t (id int primary key)")
    file = configuration(tmp_path, source, to_postgres(destination, schema="app"))
    with pytest.raises(ConfigError) as refused:
        Pipeline(load(file)).run()
    checked = penstock("check", file)
    assert checked.returncode == 1
    for told in (str(refused.value), checked.stdout):
        assert "app.t" in told
        assert all(each in told for each in BOTH)
        assert "another `target`" in told
    assert source.query("select from pg_publication") == []


def test_destinations_of_one_database_share_no_table_but_sources_of_one_destination_do(
    source: Database, destination: Database, tmp_path: Path
) -> None:
    other = {"name": "other", "type": "postgres", "dsn": destination.dsn}
    sources = [{"name": name, "dsn": source.dsn} for name in ("eu", "us")]
    shared = load(configuration(tmp_path, source, to_postgres(destination), sources=sources))
    found = {"eu": [USERS, ORDERS], "us": [USERS]}
    assert not may_collide(shared)
    assert collisions(shared, found) == []
    beside = load(configuration(tmp_path, source, to_postgres(destination), other))
    assert may_collide(beside)
    assert len(collisions(beside, {"source": [USERS, ORDERS]})) == 2
    apart = load(configuration(tmp_path, source, to_postgres(destination), {**other, "schema": "apart"}))
    assert collisions(apart, {"source": [USERS, ORDERS]}) == []


def test_a_table_that_comes_to_the_place_of_another_stops_alone_until_there_is_room(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create schema eu", "create schema us", "create table eu.t (id int primary key)")
    file = configuration(tmp_path, source, to_postgres(destination, schema="app"))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "eu.t")
        source.execute("create table us.t (id int primary key)", "insert into us.t values (1)")
        pipeline.until(lambda: (us := pipeline.tables().get("us.t")) and isinstance(us.error, TargetShared))
        source.execute("insert into eu.t values (7)")
        pipeline.until(lambda: contents(destination, "app.t") == ["(7)"])
    with running(file, spark) as pipeline:
        source.execute("insert into eu.t values (8)")
        pipeline.until(lambda: contents(destination, "app.t") == ["(7)", "(8)"])
        assert pipeline.tables()["us.t"].phase is not Phase.READY
        source.execute("drop table eu.t")
        pipeline.until(lambda: contents(destination, "app.t") == ["(1)"])

"""Two streams do not write to one table."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from penstock.config import DestinationConfig
from penstock.destinations.postgres import PostgresTarget
from penstock.model.errors import TargetShared
from tests.bed import Database
from tests.changes.made import START, USERS
from tests.destinations.given import Given


def another(given: Given, pipeline: str, name: str, dsn: str, *sources: str) -> PostgresTarget:
    config = DestinationConfig.model_validate({"name": name, "type": "postgres", "dsn": dsn})
    target = PostgresTarget(pipeline, config, sources or ("eu",), ("warehouse",))
    target.open(given.spark)
    for source in sources or ("eu",):
        target.begin(source, START)
    return target


def test_another_pipeline_does_not_write_to_a_table_of_ours(given: Given, database: Database) -> None:
    database.execute("create table users (id int primary key, name text, score numeric(10, 2))")
    given.deliver(USERS)
    ours = given.target()
    given.spool.insert(USERS, ("1", "one", None))
    assert given.write(ours, given.spool.commit()) == []
    other = another(given, "crm", "d", database.dsn)
    ((_, error),) = other.write(given.batch(given.start, START))
    assert isinstance(error, TargetShared)
    assert "by destination warehouse of pipeline shop" in error.reason
    assert "delete from penstock.tables where pipeline" in error.remedy
    with pytest.raises(TargetShared):
        given.copy(other, database, USERS.id)
    other.close()
    database.execute("delete from penstock.tables where pipeline = 'shop'")
    other.catch_up(given.changes(USERS.id, START, given.start), given.start)
    assert database.query("select id from app.users") == [(1,)]


def test_two_names_of_one_server_are_one_destination(given: Given, database: Database) -> None:
    given.deliver(USERS)
    ours = given.target()
    given.spool.insert(USERS, ("1", "one", None))
    assert given.write(ours, given.spool.commit()) == []
    other = another(given, "shop", "mirror", make_conninfo(database.dsn, host="localhost"))
    ((_, error),) = other.write(given.batch(given.start, START))
    assert isinstance(error, TargetShared)
    assert "by destination warehouse" in error.reason
    other.close()

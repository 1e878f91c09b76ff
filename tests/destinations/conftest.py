"""A destination database, and changes made by hand for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from penstock.destinations.postgres import PostgresTarget
from tests.bed import Database
from tests.changes.made import USERS
from tests.destinations.given import CHILDREN, GRANDCHILDREN, TREE, Given


@pytest.fixture
def given(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Given]:
    """A stream of changes made by hand, and the PostgreSQL destination that it goes to."""
    made = Given(spark, database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def ordinary(database: Database) -> Iterator[str]:
    """The connection of a role that may not set session_replication_role."""
    role = f"cdc_{database.name}"
    database.execute(f"create role {role} login", f"grant create on database {database.name} to {role}")
    yield make_conninfo(database.dsn, user=role)
    database.execute(f"drop owned by {role} cascade", f"drop role {role}")


@pytest.fixture
def family(given: Given, database: Database, ordinary: str) -> PostgresTarget:
    """Tables that delete rows with those that they reference, those that are referenced written first."""
    given.deliver(USERS, CHILDREN, GRANDCHILDREN, TREE)
    target = given.target(dsn=ordinary)
    given.spool.insert(USERS, ("1", "one", None), ("2", "two", None))
    given.spool.insert(CHILDREN, ("10", "1")).insert(GRANDCHILDREN, ("100", "10"))
    given.spool.insert(TREE, ("1", None), ("2", None), ("10", "1"), ("100", "10"))
    assert given.write(target, given.spool.commit()) == []
    for child, parent in [("children", "users"), ("grandchildren", "children"), ("tree", "tree")]:
        database.execute(
            f"alter table app.{child} add foreign key (parent) references app.{parent}"
            " on delete cascade on update cascade"
        )
    return target

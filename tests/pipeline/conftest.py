"""Two databases on the shared server: a source and a destination."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.embedded.postgres import PostgresServer
from penstock.spark.session import session
from tests.bed import Database, fresh_database


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("local[2]", {"spark.driver.memory": "768m"}, "penstock tests")
    yield made
    made.stop()


@pytest.fixture
def source(database: Database) -> Database:
    return database


@pytest.fixture
def destination(server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(server)

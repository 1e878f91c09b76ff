"""Two databases on the shared servers: a source and a destination."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database, fresh_database
from tests.pipeline.stepping import bed as bed


@pytest.fixture
def source(database: Database) -> Database:
    return database


@pytest.fixture
def destination(destination_server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(destination_server)


@pytest.fixture
def into(server: PostgresServer) -> Iterator[Database]:
    """Where a consumer of files rebuilds the tables."""
    yield from fresh_database(server)

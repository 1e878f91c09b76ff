"""A source and a destination on the shared server, and an ordinary role that owns a schema in each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database, fresh_database
from tests.security.attacker import Attacker


@pytest.fixture
def source(database: Database) -> Database:
    return database


@pytest.fixture
def destination(destination_server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(destination_server)


@pytest.fixture
def attacker(source: Database, destination: Database) -> Iterator[Attacker]:
    made = Attacker(f"attacker_{source.name}", source, destination)
    made.enter()
    yield made
    made.leave()

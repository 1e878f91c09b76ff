"""The test bed: real PostgreSQL servers, a fresh database for each test.

The server is the one that `penstock[embedded]` brings. Tests of `model`, `postgres`, `capture` and `spool`
also run against each bin directory listed in PENSTOCK_TEST_PG_BINS (separated by colons).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.embedded.postgres import PostgresServer, bundled_bin
from tests.bed import Database, fresh_database, started_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FURTHER_BINS = [Path(part) for part in os.environ.get("PENSTOCK_TEST_PG_BINS", "").split(":") if part]
ON_EVERY_SERVER = ("postgres", "capture", "spool")

_servers: dict[Path, PostgresServer] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        folder = Path(metafunc.definition.path).parent.name
        marked = metafunc.definition.get_closest_marker("every_server") is not None
        bins = [bundled_bin(), *(FURTHER_BINS if marked or folder in ON_EVERY_SERVER else [])]
        names = ["embedded", *(path.parent.name for path in bins[1:])]
        metafunc.parametrize("server", bins, indirect=True, ids=names)


@pytest.fixture(scope="session", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    for server in _servers.values():
        server.remove()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """A running server, shared by all tests: leave it as it was."""
    if request.param not in _servers:
        _servers[request.param] = started_server(request.param)
    return _servers[request.param]


@pytest.fixture
def own_server(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of the same version for this test alone: to stop, kill or reconfigure."""
    own = started_server(server.bin)
    yield own
    own.remove()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    """An empty database on the shared server; its slots go with it."""
    yield from fresh_database(server)


@pytest.fixture
def own_database(own_server: PostgresServer) -> Iterator[Database]:
    """An empty database on a server that this test may break."""
    yield from fresh_database(own_server)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that need one; the others do not wait for the import."""
    from penstock.spark.session import session

    made = session("local[2]", {"spark.driver.memory": "768m"}, "penstock tests")
    yield made
    made.stop()

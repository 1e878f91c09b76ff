from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.embedded.postgres import PostgresServer, bundled_bin
from tests.bed import started_server
from tests.docs.shop import Shop, prepare


@pytest.fixture(scope="session")
def shop_server() -> Iterator[PostgresServer]:
    """A server for the databases and roles that the pages name."""
    server = started_server(bundled_bin())
    yield server
    server.remove()


@pytest.fixture
def shop(shop_server: PostgresServer, tmp_path: Path) -> Shop:
    """The databases `shop` and `dw` as they are before anybody has followed a page."""
    prepare(shop_server)
    return Shop(shop_server, tmp_path)

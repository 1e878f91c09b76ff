"""A store's place, on each database that can hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bed import Database


def url_of(database: Database) -> str:
    return database.server.url(database.name)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> str:
    """Where nothing has been stored yet."""
    return url_of(database) if request.param == "postgres" else f"sqlite:///{tmp_path}/made/state.db"

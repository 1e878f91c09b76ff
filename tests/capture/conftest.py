"""A source with one published table."""

from __future__ import annotations

import pytest

from tests.bed import Database
from tests.capture.running import PEOPLE


@pytest.fixture
def source(database: Database) -> Database:
    database.execute(PEOPLE)
    return database

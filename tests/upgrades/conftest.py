"""What an earlier version left, unpacked; see `record.py`."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.bed import Database
from tests.upgrades.record import RECORDINGS

RELEASES = sorted(file.name.removesuffix(".tar.gz") for file in RECORDINGS.glob("*.tar.gz"))


@pytest.fixture(params=RELEASES)
def left_behind(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(RECORDINGS / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def old_destination(left_behind: Path, database: Database) -> Database:
    database.execute((left_behind / "destination.sql").read_text())
    return database


@pytest.fixture
def old_source(left_behind: Path, database: Database) -> Database:
    database.execute((left_behind / "source.sql").read_text())
    return database

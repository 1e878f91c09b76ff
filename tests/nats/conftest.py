"""Changes made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bed import Database
from tests.destinations.given import Given


@pytest.fixture
def given(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Given]:
    made = Given(spark, database, tmp_path)
    yield made
    made.close()

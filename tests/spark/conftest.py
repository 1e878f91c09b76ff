"""Spools made by hand, and streams over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.changes.made import ORDERS, USERS, MadeSpool

Collect = Callable[..., list[Row]]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[MadeSpool]:
    """A spool that knows `USERS` and `ORDERS`."""
    made = MadeSpool(tmp_path / "spool")
    made.learn(USERS, ORDERS)
    yield made
    made.close()


@pytest.fixture
def stream(spark: SparkSession) -> Callable[..., DataFrame]:
    """Load the stream of a spool, with options."""

    def load(spool: MadeSpool, **options: Any) -> DataFrame:
        return spark.readStream.format("postgres_cdc").options(spool=str(spool.path), **options).load()

    return load


@pytest.fixture
def drained(tmp_path: Path) -> Collect:
    """Everything that a stream has now, read under AvailableNow, in the order of arrival; batch by batch in
    `batches`. With the same `checkpoint` it goes on where it was."""

    def drain(
        stream: DataFrame, checkpoint: str = "checkpoint", batches: list[int] | None = None
    ) -> list[Row]:
        rows: list[Row] = []

        def keep(batch: DataFrame, _number: int) -> None:
            found = batch.collect()
            rows.extend(found)
            if batches is not None:
                batches.append(len(found))

        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return rows

    return drain

"""Two pipelines of one source that publish into one stream at the same time: neither loses, doubles or stops
anything of the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.embedded.nats import NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.nats.test_pipeline import changes, to_nats
from tests.pipeline.running import configuration, running

TRANSACTIONS = 40
ROWS = 50
"""Of each transaction."""


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_two_pipelines_share_a_stream(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path, delivery: str
) -> None:
    names = ("ours", "theirs")
    database.execute(*(f"create table {name} (id int primary key)" for name in names))
    files = [
        configuration(
            tmp_path / name,
            database,
            # In one process they would share the connection, and the name of the query.
            to_nats(nats, delivery=delivery) | {"name": name, "servers": [nats.url] * number},
            pipeline=name,
            sources=[{"name": "source", "dsn": database.dsn, "tables": {"include": [f"public.{name}"]}}],
        )
        for number, name in enumerate(names, 1)
    ]
    with running(files[0], spark) as ours, running(files[1], spark) as theirs:
        ours.until_phase(Phase.READY, "public.ours")
        theirs.until_phase(Phase.READY, "public.theirs")
        for number in range(TRANSACTIONS):
            rows = f"select n from generate_series({number * ROWS + 1}, {(number + 1) * ROWS}) n"
            database.execute(*(f"insert into {name} {rows}" for name in names))
        theirs.until(lambda: len(changes(nats)) >= 2 * TRANSACTIONS * ROWS)
    with running(files[0], spark):  # what the other has published is not taken for its own
        database.execute("insert into ours values (0)")
        ours.until(lambda: len(changes(nats)) > 2 * TRANSACTIONS * ROWS)
    found = Counter((message.body["table"], message.body["data"]["id"]) for message in changes(nats))
    expected = {("theirs", n) for n in range(1, TRANSACTIONS * ROWS + 1)}
    expected |= {("ours", n) for n in range(TRANSACTIONS * ROWS + 1)}
    assert set(found) == expected
    assert set(found.values()) == {1}

"""Whatever is killed on the way, a consumer that follows the registry rebuilds every table.

Killed, at random: the capture, the driver with everything that hangs on it, the Python workers, the source's
server, on which the registry is. Meanwhile rows and schemas change, tables are reloaded, and the consumer
reads what is registered, checking every file's size and SHA-256.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import psycopg
import pytest

from penstock.model import TableName
from penstock.postgres import ddl
from penstock.postgres.connection import connect
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files
from tests.pipeline.running import configuration
from tests.pipeline.test_kills import Supervised, begun, difference_of, survive


def ask_for_reload(source: Database, table: TableName) -> bool:
    said = json.dumps({"action": "EXPORT_START", "export_id": str(uuid.uuid4())})
    name = psycopg.sql.Identifier(table.schema, table.name).as_string(None)
    try:
        source.execute(f"comment on table {name} is 'CDC_RELOAD: {said}'")
    except psycopg.Error:  # the table is gone, or a lock was in the way
        return False
    return True


def run_through_kills(source: Database, into: Database, folder: Path, kills: int) -> Counter[str]:
    random, workload, sources = begun(source)
    into.execute("create type mood as enum ('sad', 'ok', 'so \"happy\"')")
    with connect(source.dsn) as connection:
        assert ddl.install(connection, "CDC_RELOAD:")
    source.execute("alter publication scenario add table penstock.ddl_history")
    pipeline = Supervised(configuration(folder, source, to_files(folder), sources=sources))
    consumer = Consumer(source, into)
    also = {"reload": lambda: ask_for_reload(source, random.choice(workload.tables))}
    differs = partial(difference_of, workload, into)
    return survive(pipeline, workload, differs, random, kills, also, lambda: consume(consumer))


def consume(consumer: Consumer) -> None:
    """The registry's server may be down, and the registry not made yet."""
    try:
        consumer.run()
    except (psycopg.OperationalError, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        time.sleep(0.2)


@pytest.mark.slow
def test_a_few_kills(own_database: Database, destination: Database, tmp_path: Path) -> None:
    assert run_through_kills(own_database, destination, tmp_path, kills=3).total() == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_forty_kills(own_database: Database, destination: Database, tmp_path: Path) -> None:
    done = run_through_kills(own_database, destination, tmp_path, kills=40)
    assert done.total() >= 40
    assert len(done) == 5

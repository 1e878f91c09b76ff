from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.config import Config, load
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import RowRefused
from penstock.model.phases import Phase
from penstock.state.store import Store, TableKey, TableState
from tests.bed import Database
from tests.monitoring.asking import Served, served
from tests.pipeline.running import configuration, to_postgres

TABLES = {"orders": Phase.READY, "users": Phase.ERRORED, 'odd "/%": é': Phase.DATA_SYNC}


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    file = configuration(tmp_path, database, to_postgres(database), monitoring={"port": 0})
    return load(file, {})


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    """The state of a pipeline that holds its lease, with a table in each of some phases."""
    with Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True) as store:
        add_tables(store)
        yield store


def add_tables(store: Store) -> None:
    for number, (name, phase) in enumerate(TABLES.items(), 1):
        table = TableName("public", name)
        store.put(
            TableState(
                TableKey("source", "copy", TableId(number)),
                table,
                table,
                phase,
                datetime.now(UTC) - timedelta(seconds=10),
                rows=100 * number,
                copied_bytes=500,
                total_bytes=1000,
                error=RowRefused("no", table=table) if phase is Phase.ERRORED else None,
            )
        )
    at = datetime.now(UTC) - timedelta(seconds=3)
    store.advance("source", "copy", Lsn(0x100), complete_through=at, rows=42)


@pytest.fixture
def http(config: Config, store: Store) -> Iterator[Served]:
    assert store.tables()
    with served(config) as serving:
        serving.ask.until("/status", lambda answer: "sources" in answer.document)
        yield serving

"""What the spool keeps for tables that do not stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config.destinations import DestinationConfig
from penstock.model import Lsn, TableId
from penstock.pipeline.table_states import Tables
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.state.store import Store

TABLE = TableId(5)


@pytest.fixture
def manifest(tmp_path: Path) -> Iterator[Manifest]:
    """Of a spool that begins at 0/64."""
    with closing(Manifest.create(tmp_path, Identity("1", "d", "s"), Lsn(100))) as manifest:
        yield manifest


@pytest.fixture
def tables(tmp_path: Path, manifest: Manifest) -> Iterator[Tables]:
    config = DestinationConfig.model_validate({"name": "copy", "type": "postgres", "dsn": "dbname=x"})
    with Store.open(f"sqlite:///{tmp_path}/state.db", "test", exclusive=True) as store:
        yield Tables(store, manifest, "source", config)


@pytest.mark.parametrize(("stands", "held"), [(50, 100), (100, 100), (150, 150)])
def test_a_table_that_streamed_is_held_from_where_it_stands_or_where_the_spool_begins(
    tables: Tables, manifest: Manifest, stands: int, held: int
) -> None:
    tables.hold(TABLE)
    tables.hold_from(TABLE, Lsn(stands))
    assert manifest.consumers() == {f"copy/{TABLE}": Lsn(held)}

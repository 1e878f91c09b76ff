"""How a stream is driven: nobody waits for it but itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.config import load
from penstock.model import ZERO, Lsn
from penstock.model.errors import StateInUse
from penstock.pipeline.query import StreamQuery
from penstock.pipeline.source_feed import SourceFeed
from penstock.state.store import Store
from tests.bed import Database
from tests.pipeline.running import configuration, to_postgres


class LargeTable:
    """Takes as long to be settled as the test wants, and then fails."""

    position = ZERO
    patient = False

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()

    def apply(self, end: Lsn) -> None: ...

    def settle(self) -> None:
        self.begun.set()
        assert self.ends.wait(60)
        raise StateInUse("not this table")


def test_the_pipelines_thread_does_not_wait_for_what_one_stream_settles(
    database: Database, tmp_path: Path
) -> None:
    config = load(configuration(tmp_path, database, to_postgres(database)))
    work = LargeTable()
    with Store.open(config.state.url.get_secret_value(), "test", exclusive=True) as store:
        query = StreamQuery(
            config, SourceFeed(config, config.sources[0]), config.destinations[0], store, work
        )
        query.tick()
        assert work.begun.wait(60)
        query.tick()  # neither the first nor this one waits for the end
        assert not work.ends.is_set()
        work.ends.set()
        with pytest.raises(StateInUse, match="not this table"):
            tick_for_ever(query)
        query.stop()


def tick_for_ever(query: StreamQuery) -> None:
    while True:
        query.tick()

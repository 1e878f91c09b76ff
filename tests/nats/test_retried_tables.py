"""A table that stopped and is retried in vain still has its waiting changes."""

from __future__ import annotations

import pytest

from penstock.config import load
from penstock.embedded.nats import NatsServer
from penstock.model.phases import Phase
from penstock.state.store import Request
from tests.nats.test_pipeline import to_nats
from tests.nats.test_stopping_tables import delivered
from tests.pipeline.running import configuration
from tests.pipeline.stepping import Bed, Process
from tests.pipeline.stepping import bed as bed
from tests.pipeline.test_table_reloads import ask, state, until


def requests(running: Process) -> list[Request]:
    assert running.store is not None
    return running.store.requests()


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
def test_a_retry_that_fails_loses_no_change_that_waits(bed: Bed, own_nats: NatsServer, delivery: str) -> None:
    """The stream has published other tables' changes meanwhile."""
    file = configuration(
        bed.folder,
        bed.source,
        to_nats(own_nats, delivery=delivery),
        sources=[{"name": "source", "dsn": bed.source.dsn, "ddl_capture": "off"}],
        retry={"initial": "2ms", "max": "10ms", "attempts": 2},
    )
    bed.source.execute("create table t (id integer primary key, note text)")
    bed.source.execute("create table u (id integer primary key)")
    running = Process(load(file), bed.spark)
    try:
        running.start()
        until(bed, running, lambda: {state(running, table).phase for table in "tu"} == {Phase.READY})
        bed.source.execute("insert into t values (1)")
        bed.source.execute("insert into t values (2, repeat('x', 2000000))", "insert into t values (3)")
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        bed.source.execute("insert into u values (1)", "insert into t values (4)")
        until(bed, running, lambda: delivered(own_nats, "u") == [1])
        ask(running, "retry")
        until(bed, running, lambda: not requests(running) and state(running).retry_at is None)
        assert state(running).phase is Phase.ERRORED
        own_nats.stop()
        own_nats.settings |= {"max_payload": 8_000_000}
        own_nats.start()
        ask(running, "retry")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert delivered(own_nats, "t") == [1, 2, 3, 4]
    finally:
        running.abandon()

"""Tables that stop between two batches, and those that take their turn after them."""

from __future__ import annotations

import pytest

from penstock.destinations.postgres.table import trust
from penstock.model.phases import Phase
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed, settings
from tests.pipeline.test_stream_start import started
from tests.pipeline.test_table_reloads import ask, state, until


def test_changes_wait_for_a_table_that_cannot_follow_a_schema_change_without_rows(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader at the destination keeps the change waiting."""
    monkeypatch.setattr(trust, "LONG", "100ms")
    bed.source.execute("create table t (id integer primary key, a text)", "insert into t values (1, 'a')")
    config = settings(bed.folder, bed.source, bed.destination, tables={"public.t": {"kind": "append"}})
    later = config.retry.model_copy(update={"initial": 600, "max": 600})
    config = config.model_copy(update={"retry": later})
    with started(bed, config) as running, bed.destination.connect() as reader:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        with reader.transaction():
            reader.execute("select from t")
            bed.source.execute("alter table t rename a to b")
            until(bed, running, lambda: state(running).phase is Phase.ERRORED)
            bed.source.execute("insert into t values (9, 'z')", "delete from t where id = 9")
            bed.until_captured()
            running.round()
        ask(running, "retry")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert contents(bed.destination, "t") == ["(1,a)", "(9,z)"]

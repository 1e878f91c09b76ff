"""Tables that stop between two batches, and those that take their turn after them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.destinations.postgres.table import trust
from penstock.model import TableName
from penstock.model.errors import OldRowUnsent
from penstock.model.phases import Phase
from penstock.pipeline.table_actions import do_what_is_asked
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed, Process, settings
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


def test_a_schema_change_without_rows_is_tried_again_with_the_longer_pauses_of_a_stopped_table(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "LONG", "100ms")
    bed.source.execute("create table t (id integer primary key, a text)")
    with started(bed, bed.config) as running, bed.destination.connect() as reader:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        with reader.transaction():
            reader.execute("select from t")
            bed.source.execute("alter table t rename a to b")
            until(bed, running, lambda: state(running).attempts > 3)
        until(bed, running, lambda: not bed.delivered.difference([TableName("public", "t")]))
        until(bed, running, lambda: state(running).phase is Phase.READY)


def phases(running: Process) -> dict[str, Phase]:
    assert running.store is not None
    return {state.name.name: state.phase for state in running.store.tables()}


def test_a_table_whose_place_another_takes_is_not_retried_as_what_it_was(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would rename the other one away."""
    copy_table = bed.delivered.target.copy_table
    with started(bed, bed.config) as running, monkeypatch.context() as patch:

        def copied_while_the_other_is_to_be_retried(*given: Any) -> int:
            ask(running, "retry")
            assert running.store is not None
            do_what_is_asked(running.store)
            patch.undo()
            rows: int = copy_table(*given)
            return rows

        bed.source.execute("create table u (id integer primary key)", "insert into u values (5)")
        until(bed, running, lambda: phases(running) == {"u": Phase.READY})
        bed.source.execute("create table t (id integer primary key, note text)")
        until(bed, running, lambda: phases(running) == {"u": Phase.READY, "t": Phase.READY})
        bed.delivered.refuse(True)
        bed.source.execute("insert into t values (1, 'bad')")
        until(bed, running, lambda: phases(running) == {"u": Phase.READY, "t": Phase.ERRORED})
        bed.delivered.refuse(False)
        patch.setattr(bed.delivered.target, "copy_table", copied_while_the_other_is_to_be_retried)
        bed.source.execute("alter table t rename to t_old; alter table u rename to t")
        until(bed, running, lambda: phases(running) == {"t": Phase.READY, "t_old": Phase.READY})
        names = [TableName("public", name) for name in ("t", "t_old")]
        assert not bed.delivered.difference(names)


@pytest.mark.parametrize(
    "rules", [{}, {"kind": "append"}, {"where": "id > 0"}], ids=["clone", "append", "transformed"]
)
def test_a_table_of_which_only_partitions_have_keys_is_followed_up_to_its_first_update(
    bed: Bed, rules: dict[str, Any]
) -> None:
    bed.source.execute(
        "create table t (id int, a text) partition by range (id)",
        "create table low partition of t for values from (0) to (9); alter table low add primary key (id)",
        "create table u (id int primary key); insert into t values (1, 'copied')",
    )
    config = settings(bed.folder, bed.source, bed.destination, tables={"public.t": rules})
    with started(bed, config) as running:
        until(bed, running, lambda: phases(running) == {"t": Phase.READY, "u": Phase.READY})
        bed.source.execute("insert into t values (2, 'streamed')")
        both = ["(1,copied)", "(2,streamed)"]
        until(bed, running, lambda: contents(bed.destination, "t") == both)
        bed.source.execute("update t set a = 'changed' where id = 1", "insert into u values (1)")
        until(bed, running, lambda: contents(bed.destination, "u") == ["(1)"])
        until(bed, running, lambda: phases(running) == {"t": Phase.ERRORED, "u": Phase.READY})
        assert isinstance(state(running).error, OldRowUnsent)
        assert contents(bed.destination, "t") == both
        bed.source.execute(*(f"alter table {name} replica identity full" for name in ("t", "low")))
        ask(running, "reload")
        until(bed, running, lambda: phases(running) == {"t": Phase.READY, "u": Phase.READY})
        bed.source.execute("update t set a = 'again' where id = 2")
        until(bed, running, lambda: "(2,again)" in contents(bed.destination, "t"))

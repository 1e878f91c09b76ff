"""What a start makes of tables that the run before left between two states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.config import Config
from penstock.model import TableName
from penstock.model.phases import Phase
from tests.pipeline.stepping import Bed, Process
from tests.pipeline.test_table_reloads import ask, state, until

T = TableName("public", "t")


@contextmanager
def started(bed: Bed, config: Config) -> Iterator[Process]:
    running = Process(config, bed.spark)
    try:
        running.start()
        yield running
    finally:
        running.abandon()


def in_mode(config: Config, mode: str) -> Config:
    sources = [source.model_copy(update={"startup_mode": mode}) for source in config.sources]
    return config.model_copy(update={"sources": sources})


def test_a_table_whose_new_copy_was_refused_is_not_taken_for_caught_up(bed: Bed) -> None:
    bed.source.execute("create table t (id integer primary key, note text)", "insert into t values (1, 'a')")
    with started(bed, bed.config) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
    bed.delivered.refuse(True)
    bed.source.execute("insert into t values (2, 'bad')")
    with started(bed, in_mode(bed.config, "force_reload")) as running:
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        assert state(running).snapshot is not None
    bed.delivered.refuse(False)
    with started(bed, bed.config) as running:
        ask(running, "retry")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert not bed.delivered.difference([T])


def test_a_table_of_which_the_destination_has_another_copy_is_copied_anew(bed: Bed) -> None:
    """As after it was restored from a backup that was made where the stream still is."""
    bed.source.execute("create table t (id integer primary key)", "insert into t values (1)")
    with started(bed, bed.config) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
    bed.destination.execute("update penstock.tables set copy = 'older'; delete from t")
    with started(bed, bed.config) as running:
        until(bed, running, lambda: not bed.delivered.difference([T]))

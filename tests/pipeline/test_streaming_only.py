"""`startup_mode: streaming_only`: what the destination has stays, and every change arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from penstock.destinations.postgres.table import trust
from penstock.model.errors import CopyRuledOut
from penstock.model.phases import Phase
from penstock.pipeline.copier import Copier
from penstock.spool.manifest import Manifest
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed, Process, settings
from tests.pipeline.test_table_reloads import ask, state, until
from tests.pipeline.test_went_back import Backup
from tests.pipeline.test_went_back import backups as backups


@contextmanager
def streaming_only(bed: Bed, **destination: Any) -> Iterator[Process]:
    config = settings(bed.folder, bed.source, bed.destination, **destination)
    source = config.sources[0].model_copy(update={"startup_mode": "streaming_only"})
    running = Process(config.model_copy(update={"sources": [source]}), bed.spark)
    try:
        running.start()
        yield running
    finally:
        running.abandon()


def test_a_table_that_is_locked_when_it_is_handed_over_holds_up_no_other(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "LONG", "100ms")
    tables = ("create table t (id integer primary key)", "create table u (id integer primary key)")
    bed.source.execute(*tables)
    bed.destination.execute(*tables, "insert into t values (7)")
    with streaming_only(bed, tables={"public.t": {}}) as running:
        until(bed, running, lambda: state(running).phase is Phase.FINISHED_COPY)
        with bed.destination.connect() as other, other.transaction():
            other.execute("lock table t in share mode")
            until(bed, running, lambda: state(running).phase is Phase.ERRORED)
            bed.source.execute("insert into t values (1)", "insert into u values (1)")
            until(bed, running, lambda: contents(bed.destination, "u") == ["(1)"])
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)", "(7)"])
        assert state(running).phase is Phase.READY


def test_a_table_that_is_copied_anew_goes_on_where_it_stood(bed: Bed) -> None:
    """Though the spool has earlier changes, for somebody who is slow, also of other columns."""
    bed.source.execute("create table t (note text)", "alter table t replica identity full")
    bed.destination.execute("create table t (note text, b text)", "insert into t values ('there')")
    with streaming_only(bed, tables={"public.t": {}}) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        with closing(Manifest.open(bed.spool)) as manifest:
            manifest.register("slow", manifest.retired)
        bed.source.execute("insert into t values ('before')")
        until(bed, running, lambda: contents(bed.destination, "t") == ["(before,)", "(there,)"])
        bed.source.execute("alter table t add b text", "insert into t values ('altered', 'b')")
        until(bed, running, lambda: len(contents(bed.destination, "t")) == 3)
        copy = state(running).copy
        ask(running, "reload")
        until(bed, running, lambda: state(running).copy != copy)
        bed.source.execute("insert into t values ('after', 'b')")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        expected = ["(after,b)", "(altered,b)", "(before,)", "(there,)"]
        until(bed, running, lambda: contents(bed.destination, "t") == expected)


def test_a_table_whose_changes_cannot_be_followed_without_a_copy_stops_and_says_so(bed: Bed) -> None:
    bed.source.execute("create table t (id integer primary key)")
    with streaming_only(bed) as running:
        bed.source.execute("insert into t values (1)", "alter table t add b text")
        bed.source.execute("insert into t values (2, 'b')")
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        error = state(running).error
        assert isinstance(error, CopyRuledOut)
        assert "startup_mode: auto" in error.remedy
        assert state(running).retry_at is None


@pytest.mark.parametrize("waits", [False, True], ids=["streams", "waits for a copy"])
def test_a_destination_that_was_restored_gets_what_it_lacks_from_the_spool(
    bed: Bed, backups: list[Backup], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    bed.source.execute("create table t (id integer primary key)")
    bed.destination.execute("create table t (id integer primary key)")
    with streaming_only(bed, tables={"public.t": {}}) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        bed.source.execute("insert into t values (1)")
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)"])
        with closing(Manifest.open(bed.spool)) as manifest:
            manifest.register("slow", manifest.consumers()["copy"])
    backups.append(Backup(bed.destination))
    with streaming_only(bed, tables={"public.t": {}}) as running:
        bed.source.execute("insert into t values (2)")
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)", "(2)"])
        if waits:
            with monkeypatch.context() as patch:
                patch.setattr(Copier, "look", lambda *_: None)
                ask(running, "reload")
                until(bed, running, lambda: state(running).phase is Phase.INIT)
    backups[0].restore()
    with streaming_only(bed, tables={"public.t": {}}) as running:
        bed.source.execute("insert into t values (3)")
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)", "(2)", "(3)"])
        until(bed, running, lambda: state(running).phase is Phase.READY)

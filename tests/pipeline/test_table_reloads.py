"""`penstock reload` and `penstock retry` of tables that stopped: whatever it was, a new copy mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.model import TableName
from penstock.model.errors import RowRefused, StateUnreachable, TransformRefused
from penstock.model.phases import Phase
from penstock.pipeline.table_states import Tables
from penstock.state.store import Store, TableState
from tests.pipeline.delivered import KINDS
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed, Process, settings_of


@contextmanager
def process(bed: Bed, **destination: Any) -> Iterator[Process]:
    running = Process(settings_of(bed.folder, bed.source, bed.delivered, **destination), bed.spark)
    try:
        running.start()
        yield running
    finally:
        running.abandon()


def state(running: Process, table: str = "t") -> TableState:
    assert running.store is not None
    return next(one for one in running.store.tables() if one.name.name == table)


def until(bed: Bed, running: Process, check: Callable[[], object], rounds: int = 40) -> None:
    for _ in range(rounds):
        running.round()
        bed.until_captured()
        if check():
            return
    raise AssertionError(f"not after {rounds} rounds: {running.store and running.store.tables()}")


def ask(running: Process, kind: str) -> None:
    with Store.open(running.config.state.url.get_secret_value(), "test", exclusive=False) as store:
        store.request(kind, {"tables": ["public.t"]})


def test_a_reload_mends_a_table_that_a_row_stopped(bed: Bed) -> None:
    bed.source.execute("create table t (id integer primary key, a text)", "insert into t values (1, 'x')")
    with process(bed) as running:
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1,x)"])
        bed.destination.execute("alter table t add check (a <> 'bad')")
        bed.source.execute("insert into t values (2, 'bad')")
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        assert isinstance(state(running).error, RowRefused)
        bed.source.execute("update t set a = 'good' where id = 2")
        ask(running, "reload")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert contents(bed.destination, "t") == ["(1,x)", "(2,good)"]


@pytest.mark.parametrize("bed", KINDS, indirect=True)
def test_a_reload_that_is_asked_for_in_the_stream_mends_a_table_that_a_row_stopped(bed: Bed) -> None:
    bed.delivered.ddl_capture = "on"
    tables = [TableName("public", "t")]
    bed.source.execute(
        "create table t (id integer primary key, note text); comment on table t is 'its own'",
        "insert into t values (1, 'x')",
    )
    with process(bed) as running:
        until(bed, running, lambda: not bed.delivered.difference(tables))
        bed.delivered.refuse(True)
        bed.source.execute("insert into t values (2, 'bad')")
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        bed.source.execute("update t set note = 'good' where id = 2")
        asked = CliRunner().invoke(app, ["reload", str(bed.folder / "pipeline.yaml"), "t"])
        assert asked.exit_code == 0
        assert running.store is not None
        assert running.store.requests() == []
        until(bed, running, lambda: state(running).phase is Phase.READY)
        until(bed, running, lambda: not bed.delivered.difference(tables))
        comment = "select obj_description('t'::regclass)"
        until(bed, running, lambda: bed.source.query(comment) == [("its own",)])


def test_a_reload_that_is_asked_for_during_a_copy_comes_after_it(bed: Bed) -> None:
    bed.source.execute("create table t (id integer primary key)", "insert into t values (1)")
    with process(bed) as running:
        bed.during[:] = ["select 1"]
        asked: list[str] = []
        copy_table = running.targets[0].copy_table

        def copied(copy: Any) -> int:
            asked.append(copy.id)
            if len(asked) == 1:
                ask(running, "reload")
                running.pipeline._keep_house(running.store, running.copier)  # type: ignore[arg-type]
            return copy_table(copy)

        running.targets[0].copy_table = copied  # type: ignore[method-assign]
        until(bed, running, lambda: len(asked) == 2 and state(running).phase is Phase.READY)
        assert contents(bed.destination, "t") == ["(1)"]
        for _ in range(5):
            running.round()
        assert len(asked) == 2


def test_a_masked_column_with_another_name_goes_on_once_its_rule_names_it(bed: Bed) -> None:
    """Also where the changes that wait are from before, and none comes after."""
    bed.source.execute(
        "create table t (id integer primary key, secret text)", "insert into t values (1, 'hidden')"
    )
    with process(bed, tables={"public.t": {"drop": ["secret"]}}) as running:
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)"])
    bed.source.execute("insert into t values (2, 'hidden')", "alter table t rename secret to other")
    bed.until_captured()
    with process(bed, tables={"public.t": {"drop": ["other"]}}) as running:
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        assert isinstance(state(running).error, TransformRefused)
        ask(running, "retry")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert contents(bed.destination, "t") == ["(1)", "(2)"]


@pytest.mark.parametrize("phase", [Phase.FINISHED_COPY, Phase.READY])
def test_a_table_becomes_ready_though_the_state_was_away_after_its(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """And for the next write, which may be the one that would tell of it."""
    put, away = Tables.put, list[TableState]()

    def fail_twice(self: Tables, state: TableState, why: str = "") -> None:
        if len(away) < 2 and (away or state.phase is phase):
            away.append(state)
            raise StateUnreachable("the state store cannot be used")
        put(self, state, why)

    monkeypatch.setattr(Tables, "put", fail_twice)
    bed.source.execute("create table t (id integer primary key)", "insert into t values (1)")
    with process(bed) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert len(away) == 2
        bed.source.execute("insert into t values (2)")
        until(bed, running, lambda: contents(bed.destination, "t") == ["(1)", "(2)"])


@pytest.mark.parametrize("bed", ["files"], indirect=True)
def test_somebody_elses_export_without_a_snapshot_that_fails_is_handed_over_when_it_is_retried(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught_up: list[Any] = []
    monkeypatch.setattr(bed.delivered.target, "catch_up", lambda *given: caught_up.append(given))
    bed.source.execute("create table t (id integer primary key, note text)", "insert into t values (1, 'x')")

    def mark(action: str, **more: Any) -> None:
        told = json.dumps({"action": action, "export_id": "theirs", **more})
        bed.source.execute(f"comment on table t is 'CDC_RELOAD: {told}'")

    with process(bed) as running:
        until(bed, running, lambda: state(running).phase is Phase.READY)
        mark("EXPORT_START", external=True)
        until(bed, running, lambda: state(running).phase is Phase.FINISHED_COPY)
        bed.delivered.refuse(True)
        bed.source.execute("insert into t values (2, 'bad')")
        mark("EXPORT_END")
        until(bed, running, lambda: state(running).phase is Phase.ERRORED)
        bed.delivered.refuse(False)
        ask(running, "retry")
        until(bed, running, lambda: state(running).phase is Phase.READY)
        assert caught_up == []

"""What may be asked of a table in which state, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.model import TableId, TableName
from penstock.model.errors import PenstockError, RowRefused, TablePaused
from penstock.model.phases import Phase
from penstock.pipeline.table_actions import ACTIONS, PAUSE, RELOAD, do_what_is_asked
from penstock.state.store import Store, TableKey, TableState

NAME = TableName("public", "t")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/state.db", "test", exclusive=True) as store:
        yield store


def table(
    phase: Phase, error: PenstockError | None = None, destination: str = "copy", **detail: bool
) -> TableState:
    key = TableKey("source", destination, TableId(1))
    return TableState(key, NAME, NAME, phase, datetime.now(UTC), error=error, attempts=3, detail=detail)


READY, INIT = table(Phase.READY), table(Phase.INIT)
STOPPED = table(Phase.ERRORED, RowRefused("no"))
PAUSED = table(Phase.ERRORED, TablePaused("it was asked to pause"))
ABOUT_TO_PAUSE = table(Phase.READY, pause=True)


@pytest.mark.parametrize(
    ("action", "fitting"),
    [
        ("reload", [READY, STOPPED, PAUSED, ABOUT_TO_PAUSE]),
        ("retry", [STOPPED]),
        ("pause", [READY, INIT, STOPPED, ABOUT_TO_PAUSE]),
        ("resume", [PAUSED, ABOUT_TO_PAUSE]),
    ],
)
def test_each_action_fits_some_states(action: str, fitting: list[TableState]) -> None:
    states = [READY, INIT, STOPPED, PAUSED, ABOUT_TO_PAUSE]
    assert [state for state in states if ACTIONS[action].fits(state)] == fitting


def test_what_is_asked_is_done_where_it_fits_and_nowhere_else(store: Store) -> None:
    other = table(Phase.READY, destination="other")
    store.put(STOPPED)
    store.put(other)
    for kind in ("retry", "pause", "reload", "nothing that is known"):
        store.request(kind, {"tables": ["public.*"], "destination": "copy"})
    do_what_is_asked(store)
    done = store.table(STOPPED.key)
    assert done is not None
    assert (done.attempts, done.retry_at is not None) == (0, True)
    assert done.detail.keys() == {RELOAD, PAUSE}
    assert store.table(other.key) == other
    assert store.requests() == []
    store.request("resume", {"tables": ["public.t"]})
    do_what_is_asked(store)
    resumed = store.table(STOPPED.key)
    assert resumed is not None
    assert resumed.detail.keys() == {RELOAD}

"""What may be asked to be done to a table: which states each action fits, and what becomes of them.

Commands and HTTP leave a request in the state store; the pipeline does it between two rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from penstock.config.tables import matches
from penstock.model.phases import Phase
from penstock.state.store import Request, Store, TableState

RELOAD = "reload"
"""In a table's `detail`: it is to be copied anew."""
PAUSE = "pause"
"""In a table's `detail`: it is to stop, between two batches."""


class Action(NamedTuple):
    fits: Callable[[TableState], bool]
    """Whether a table in that state has anything of the kind to do."""
    done: Callable[[TableState], TableState]


def _tried_again(state: TableState) -> TableState:
    return replace(state, retry_at=datetime.now(UTC), attempts=0)


def _resumed(state: TableState) -> TableState:
    """Take back a pause, also one that has not begun yet."""
    detail = {key: value for key, value in state.detail.items() if key != PAUSE}
    return _tried_again(state) if state.is_paused else replace(state, detail=detail)


def _marked(state: TableState, mark: str) -> TableState:
    """Return the state with a mark that the stream heeds between batches, or after a copy."""
    return replace(state, detail={**state.detail, mark: True})


ACTIONS = {
    "reload": Action(lambda state: state.phase is not Phase.INIT, lambda state: _marked(state, RELOAD)),
    "retry": Action(lambda state: state.phase is Phase.ERRORED and not state.is_paused, _tried_again),
    "pause": Action(lambda state: not state.is_paused, lambda state: _marked(state, PAUSE)),
    "resume": Action(lambda state: state.is_paused or bool(state.detail.get(PAUSE)), _resumed),
}


def do_what_is_asked(store: Store) -> None:
    """Do what requests ask for, to the tables that they are about and whose state it fits."""
    for request in store.requests():
        if request.kind in ACTIONS:
            done = partial(_done_if_it_fits, ACTIONS[request.kind])
            for state in store.tables():
                if _is_about(request, state):
                    store.update(state.key, done, f"asked to {request.kind}")
        store.done(request)


def _done_if_it_fits(action: Action, state: TableState) -> TableState | None:
    return action.done(state) if action.fits(state) else None


def _is_about(request: Request, state: TableState) -> bool:
    patterns = request.what.get("tables") or ["*.*"]
    if request.what.get("source", state.key.source) != state.key.source:
        return False
    if request.what.get("destination", state.key.destination) != state.key.destination:
        return False
    return any(matches(pattern, state.name) for pattern in patterns)

"""What may be asked of a pipeline, by its state store: it does so within seconds, or when it is started."""

from __future__ import annotations

from penstock.config import Config
from penstock.model.errors import PenstockError, Scope, UnknownTable
from penstock.model.schema import quoted
from penstock.pipeline.table_actions import ACTIONS
from penstock.state.store import Store, TableState


class WrongPhase(PenstockError):
    """The table is not in a state in which this can be done to it."""

    scope = Scope.RUN
    remedy = "See in /status what phase it is in"


def ask(
    config: Config, action: str, table: str, source: str | None = None, destination: str | None = None
) -> list[dict[str, str]]:
    """Ask for something to be done to the table of that name; return of which source, and for which
    destination. Raises UnknownTable, WrongPhase."""
    url = config.state.url.get_secret_value()
    with Store.existing(url, config.pipeline) as store:
        named = [state for state in store.tables(source, destination) if str(state.name) == table]
        if not named:
            raise UnknownTable(
                f"no table of the pipeline is called {table}", remedy="See /status for its tables"
            )
        chosen = [state for state in named if ACTIONS[action].fits(state)]
        if not chosen:
            phases = ", ".join(sorted({state.phase.value for state in named}))
            raise WrongPhase(f"a table that is {phases} has nothing to {action}", table=table)
        for state in chosen:
            store.request(action, _what(state))
    return [{"source": state.key.source, "destination": state.key.destination} for state in chosen]


def _what(state: TableState) -> dict[str, object]:
    name = state.name
    return {
        "tables": [f"{quoted(name.schema)}.{quoted(name.name)}"],
        "source": state.key.source,
        "destination": state.key.destination,
    }

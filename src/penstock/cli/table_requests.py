"""What is asked of a running pipeline for some of its tables, through its state."""

from __future__ import annotations

from pathlib import Path

from penstock.cli import patterns


def ask(config: Path, tables: list[str], kind: str, words: str) -> None:
    """Ask for it, for those of the tables that it fits; `words` say which those are, and what will be."""
    from penstock.config import load
    from penstock.config.tables import matches
    from penstock.model.errors import UnknownTable
    from penstock.model.text import printable
    from penstock.pipeline.table_actions import ACTIONS
    from penstock.state.store import Store

    which, will_be = words.split(": ")
    loaded = load(config)
    patterns.check(tables)
    with Store.open(loaded.state.url.get_secret_value(), loaded.pipeline, exclusive=False) as store:
        fit = [state for state in store.tables() if ACTIONS[kind].fits(state)]
        chosen = [state for state in fit if any(matches(pattern, state.name) for pattern in tables)]
        if not chosen:
            names = ", ".join(sorted({str(state.name) for state in fit})) or "none"
            raise UnknownTable(
                f"no {which} table matches {', '.join(tables)}",
                remedy=f"{which.capitalize()} tables: {names}",
            )
        store.request(kind, {"tables": tables})
        for state in chosen:
            print(printable(f"{state.name} for {state.key.destination} will be {will_be}"))
        if store.holder() is None:
            print("The pipeline does not run: it will do so when it is started.")

"""`penstock retry`: takes tables out of `errored`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import patterns


def retry(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    tables: Annotated[list[str], typer.Argument(help="Tables (globs such as public.order*).")],
) -> None:
    """Let tables that stopped go on where they stopped, once the cause is mended.

    Example: penstock retry shop.yaml public.orders
    """
    from penstock.config import load
    from penstock.config.tables import matches
    from penstock.model.errors import UnknownTable
    from penstock.model.phases import Phase
    from penstock.model.text import printable
    from penstock.state.store import Store

    loaded = load(config)
    patterns.check(tables)
    with Store.open(loaded.state.url.get_secret_value(), loaded.pipeline, exclusive=False) as store:
        stopped = [state for state in store.tables() if state.phase is Phase.ERRORED]
        chosen = [state for state in stopped if any(matches(pattern, state.name) for pattern in tables)]
        if not chosen:
            names = ", ".join(sorted({str(state.name) for state in stopped})) or "none"
            raise UnknownTable(
                f"no errored table matches {', '.join(tables)}", remedy=f"Errored tables: {names}"
            )
        store.request("retry", {"tables": tables})
        for state in chosen:
            print(printable(f"{state.name} for {state.key.destination} will be tried again"))
        if store.holder() is None:
            print("The pipeline does not run: it will do so when it is started.")

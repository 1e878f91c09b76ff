"""`penstock serve`: dashboard and API of a pipeline that runs elsewhere."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from penstock.cli.arguments import ConfigFile


def serve(
    config: ConfigFile,
    port: Annotated[
        int | None,
        typer.Option(help="Another port than `monitoring.port`; 0: any free one.", min=0, max=65535),
    ] = None,
) -> None:
    """Show a pipeline that runs elsewhere, read only, until Ctrl-C.

    Example: penstock serve shop.yaml --port 8081
    """
    from penstock.config import load
    from penstock.model.errors import StateUnreachable
    from penstock.monitoring.events import Events
    from penstock.monitoring.observing import Observer
    from penstock.monitoring.serving import HttpServer
    from penstock.state.store import Store

    loaded = load(config)
    if port is not None:
        monitoring = loaded.monitoring.model_copy(update={"port": port})
        loaded = loaded.model_copy(update={"monitoring": monitoring})
    with suppress(StateUnreachable):  # the page tells of it until it is back
        Store.existing(loaded.state.url.get_secret_value(), loaded.pipeline).close()
    server = HttpServer(Observer(loaded, Events(), only_looks=True), None)
    print(server.url, flush=True)
    server.run()

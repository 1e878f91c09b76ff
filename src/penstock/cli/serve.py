"""`penstock serve`: dashboard and API of a pipeline that runs elsewhere."""

from __future__ import annotations

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
    from penstock.monitoring.events import Events
    from penstock.monitoring.observing import Observer
    from penstock.monitoring.serving import HttpServer

    loaded = load(config)
    if port is not None:
        monitoring = loaded.monitoring.model_copy(update={"port": port})
        loaded = loaded.model_copy(update={"monitoring": monitoring})
    server = HttpServer(Observer(loaded, Events()), None)
    print(server.url, flush=True)
    server.run()

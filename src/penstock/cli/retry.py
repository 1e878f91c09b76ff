"""`penstock retry`: takes tables out of `errored`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import table_requests


def retry(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    tables: Annotated[list[str], typer.Argument(help="Tables (globs such as public.order*).")],
) -> None:
    """Let tables that stopped go on where they stopped, once the cause is mended.

    Example: penstock retry shop.yaml public.orders
    """
    table_requests.ask(config, tables, "retry", "errored: tried again")

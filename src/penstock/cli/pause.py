"""`penstock pause` and `penstock resume`: tables that stop for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import table_requests


def pause(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    tables: Annotated[list[str], typer.Argument(help="Tables (globs such as public.order*).")],
) -> None:
    """Deliver nothing of some tables until they are resumed. Their changes wait in the spool, which grows.

    Example: penstock pause shop.yaml public.orders
    """
    table_requests.ask(config, tables, "pause", "delivered: paused")


def resume(
    config: Annotated[Path, typer.Argument(help="The configuration file.")],
    tables: Annotated[list[str], typer.Argument(help="Tables (globs such as public.order*).")],
) -> None:
    """Let tables that were paused go on where they stopped.

    Example: penstock resume shop.yaml public.orders
    """
    table_requests.ask(config, tables, "resume", "paused: resumed")

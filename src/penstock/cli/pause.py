"""`penstock pause` and `penstock resume`: tables that stop for a while."""

from __future__ import annotations

from penstock.cli import table_requests
from penstock.cli.arguments import ConfigFile, Tables


def pause(
    config: ConfigFile,
    tables: Tables,
) -> None:
    """Deliver nothing of some tables until they are resumed. Their changes wait in the spool, which grows.

    Example: penstock pause shop.yaml public.orders
    """
    table_requests.ask(config, tables, "pause", "delivered: paused")


def resume(
    config: ConfigFile,
    tables: Tables,
) -> None:
    """Let tables that were paused go on where they stopped.

    Example: penstock resume shop.yaml public.orders
    """
    table_requests.ask(config, tables, "resume", "paused: resumed")

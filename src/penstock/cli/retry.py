"""`penstock retry`: takes tables out of `errored`."""

from __future__ import annotations

from penstock.cli import table_requests
from penstock.cli.arguments import ConfigFile, Tables


def retry(
    config: ConfigFile,
    tables: Tables,
) -> None:
    """Let tables that stopped go on where they stopped, once the cause is mended.

    Example: penstock retry shop.yaml public.orders
    """
    table_requests.ask(config, tables, "retry", "errored: tried again")

"""`penstock snapshot`: asks for a snapshot on a NATS destination."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from penstock.cli.arguments import ConfigFile, table_names


def snapshot(
    config: ConfigFile,
    tables: Annotated[
        list[str], typer.Argument(help="Tables, such as public.orders.", autocompletion=table_names)
    ],
    destination: Annotated[
        str | None, typer.Option(help="The destination. Default: the only one of type nats.")
    ] = None,
) -> None:
    """Ask for snapshots of tables on a NATS destination, and wait until they are there.

    The pipeline makes them while it runs, as it does for every consumer that asks.

    Example: penstock snapshot shop.yaml public.orders
    """
    from penstock.cli.nats_destination import nats_options
    from penstock.config import load
    from penstock.destinations.nats.asking import ask_for_snapshot
    from penstock.destinations.nats.subjects import token
    from penstock.model import TableName
    from penstock.model.text import printable

    options = nats_options(load(config), destination)
    for text in tables:
        table = TableName.parse(text)
        made = ask_for_snapshot(options, table, partial(_began, text))
        subject = f"init.snap.{token(table)}.{made['snapshot_id']}.*"
        print(printable(f"{text}: {made['row_count']} rows in {made['batch_count']} messages, {subject}"))


def _began(table: str, id: str) -> None:
    from penstock.model.text import printable

    print(printable(f"{table}: {id} is being made"), flush=True)

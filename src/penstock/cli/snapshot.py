"""`penstock snapshot`: asks for a snapshot on a NATS destination."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments import ConfigFile, table_names

if TYPE_CHECKING:
    from penstock.consumer import ConsumerAccess, SnapshotInfo


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
    from penstock.cli.nats_destination import consumer_access, nats_options
    from penstock.config import load
    from penstock.destinations.nats.subjects import token
    from penstock.model import TableName
    from penstock.model.text import printable

    access = consumer_access(nats_options(load(config), destination))
    for text in tables:
        name = token(TableName.parse(text))
        info = asyncio.run(request_snapshot(access, name, text))
        subject = f"init.snap.{name}.{info.snapshot_id}.*"
        print(printable(f"{text}: {info.row_count} rows in {info.batch_count} messages, {subject}"))


async def request_snapshot(access: ConsumerAccess, token: str, table: str) -> SnapshotInfo:
    """Ask for a snapshot, and return what is said of it when it is there."""
    from penstock.consumer import Feed

    async with Feed.open(access) as feed, feed.snapshots(token).taken(partial(_began, table)) as (info, _):
        return info


def _began(table: str, snapshot_id: str) -> None:
    from penstock.model.text import printable

    print(printable(f"{table}: {snapshot_id} is being made"), flush=True)

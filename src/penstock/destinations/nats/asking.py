"""Asking for a snapshot, as any consumer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.documents import unpacked
from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.subjects import REQUESTS, SNAPSHOTS, token
from penstock.model import TableName
from penstock.model.errors import ConnectionFailed, DestinationFailed, NotReady

LOOK = 2.0
"""Seconds between two looks whether the connection still stands."""

LOOK = 2.0
"""Seconds between two looks whether the connection still stands."""


def ask_for_snapshot(options: NatsOptions, table: TableName, began: Callable[[str], None]) -> dict[str, Any]:
    """Ask for a snapshot of a table and wait until it is there; return what is said of it. `began` is told
    its id."""
    link = NatsLink.of(options.access())
    try:
        return link.run(_asked(link, Encoding(options.encoding), table, began), None)
    finally:
        link.close()


async def _asked(
    link: NatsLink, encoding: Encoding, table: TableName, began: Callable[[str], None]
) -> dict[str, Any]:
    client, name = await link.client(), token(table)
    ended: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def heard(message: Msg) -> None:
        ended.put_nowait(unpacked(message.data, encoding))

    for subject in ("meta", "error"):
        await client.subscribe(f"{SNAPSHOTS}.{subject}.{name}", cb=heard)
    await client.flush()
    try:
        answer = await client.request(f"{REQUESTS}.{name}", b"", timeout=ANSWERING)
    except NoRespondersError:
        raise NotReady(
            "nobody answers requests for snapshots",
            remedy="Start the pipeline: `penstock run CONFIG` makes them",
        ) from None
    said = unpacked(answer.data, encoding)
    if "error" in said:
        raise DestinationFailed(said["error"], table=table, remedy="Ask for a table that is delivered there")
    began(said["snapshot_id"])
    while True:
        try:
            document = await asyncio.wait_for(ended.get(), LOOK)
        except TimeoutError:
            if client.is_closed:
                raise ConnectionFailed("the connection to NATS is gone", servers=link.access.shown) from None
            continue
        if document.get("snapshot_id") == said["snapshot_id"]:
            if "error" in document:
                remedy = "Mend the cause, then ask again"
                raise DestinationFailed(document["error"], table=table, remedy=remedy)
            return document

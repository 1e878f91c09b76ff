"""Who reads a source's spool: how far each is, how much is kept for it, and how one is forgotten.

Destinations of the configuration and their tables look after themselves. A query of Spark's that is gone for
good does not, nor does a destination of an earlier version's: they are forgotten by command.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.capture.launch import spool_of
from penstock.config import Config, SourceConfig
from penstock.model import TableId
from penstock.model.errors import UnknownConsumer
from penstock.spool import consumers
from penstock.spool.consumers import Consumer
from penstock.spool.identity import spool_exists
from penstock.spool.manifest import Manifest

Document = dict[str, Any]


def listed(config: Config, source: SourceConfig) -> list[Document]:
    """Return the consumers, the slowest first; none where capture never began."""
    spool = spool_of(config, source)
    if not spool_exists(spool):
        return []
    with closing(Manifest.open(spool)) as opened:
        position = opened.position
        names = {table: schema.name for (table, _), schema in sorted(opened.schemas().items())}
        return [
            {
                "name": consumer.name,
                "kind": kind(config, consumer),
                "table": str(names[table]) if (table := _table(consumer.name)) in names else None,
                "position": str(consumer.position),
                "behind_bytes": max(position - consumer.position, 0),
                "kept_bytes": consumer.kept,
                "oldest_seconds": _age(consumer.oldest),
                "updated_at": consumer.updated_at.isoformat(),
            }
            for consumer in consumers.listed(opened)
        ]


def kind(config: Config, consumer: Consumer) -> str:
    """Return `destination`, `table` (its changes wait for a destination), or `other`: a query's own, or of a
    destination that is not configured."""
    destination, *table = consumer.name.split("/")
    if destination not in {configured.name for configured in config.destinations}:
        return "other"
    return "table" if table else "destination"


def forget(config: Config, name: str, source: str | None = None) -> dict[str, list[str]]:
    """Forget a consumer, and its tables if it was a destination's, at this source or at all; return who was
    forgotten, by source. Raise `UnknownConsumer` for one that is not there, or that the configuration
    names."""
    destination = name.partition("/")[0]
    if destination in {configured.name for configured in config.destinations}:
        raise UnknownConsumer(
            f"{name} is of a destination of the configuration",
            remedy=f"Take {destination} out of the configuration: the next start forgets it",
        )
    chosen = [config.source(source)] if source else config.sources
    spools = {at.name: spool_of(config, at) for at in chosen}
    gone = {at: _forgotten(spool, name) for at, spool in spools.items() if spool_exists(spool)}
    if not any(gone.values()):
        others = sorted({consumer["name"] for at in chosen for consumer in listed(config, at)})
        raise UnknownConsumer(
            f"no consumer is called {name}", remedy=f"There are: {', '.join(others) or 'none'}"
        )
    return {at: names for at, names in gone.items() if names}


def _forgotten(spool: Path, name: str) -> list[str]:
    with closing(Manifest.open(spool)) as opened:
        return consumers.forget(opened, name)


def _age(at: datetime | None) -> float:
    return round(max((datetime.now(UTC) - at).total_seconds(), 0), 1) if at else 0.0


def _table(name: str) -> TableId:
    table = name.partition("/")[2]
    return TableId(int(table) if table.isdecimal() else 0)

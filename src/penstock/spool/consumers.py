"""The consumers of a spool as its operator sees them: who they are, what is kept for each, who is forgotten.

A consumer is a destination, a table whose changes wait for one (`<destination>/<table id>`), or a query by a
name of its own. The manifest remembers which ones the pipeline's destinations were.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from penstock.model import Lsn
from penstock.spool.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Consumer:
    name: str
    position: Lsn
    updated_at: datetime
    kept: int
    """Bytes of the segments that it has still to read."""
    oldest: datetime | None
    """When the first of these was written; None: it has read them all."""


def listed(manifest: Manifest) -> list[Consumer]:
    """Return the consumers, the slowest first."""
    rows = manifest.rows("select name, position, updated_at from consumers order by position, name")
    segments = manifest.rows("select end_lsn, bytes, file from segments order by id")
    written = lru_cache(_written)
    return [
        Consumer(
            name,
            Lsn(position),
            datetime.fromisoformat(updated).replace(tzinfo=UTC),
            sum(size for end, size, _ in segments if end > position),
            next((written(manifest.path.parent / file) for end, _, file in segments if end > position), None),
        )
        for name, position, updated in rows
    ]


def _written(segment: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(segment.stat().st_mtime, UTC)
    except FileNotFoundError:  # everybody has read it by now
        return None


def configure(manifest: Manifest, destinations: Iterable[str]) -> list[str]:
    """Set the pipeline's destinations. Consumers of one that is gone are forgotten, and their names returned;
    those of queries, which are in no configuration, stay."""
    with manifest.transaction() as db:
        former = {name for (name,) in db.execute("select name from destinations")}
        current = set(destinations)
        db.execute("delete from destinations")
        db.executemany("insert into destinations values (?)", [(name,) for name in current])
        return [gone for name in sorted(former - current) for gone in _forget(db, name)]


def forget(manifest: Manifest, consumer: str) -> list[str]:
    """Forget the consumer and the tables that wait for it; return the names of those that were there."""
    with manifest.transaction() as db:
        return _forget(db, consumer)


def _forget(db: sqlite3.Connection, consumer: str) -> list[str]:
    gone = db.execute(
        "delete from consumers where name = ?1 or substr(name, 1, length(?1) + 1) = ?1 || '/' returning name",
        (consumer,),
    )
    return sorted(name for (name,) in gone)

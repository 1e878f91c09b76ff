"""Full copies between their beginning and when they are handed over: files that nobody knows of yet.

Each copy's folder is recorded from the beginning on. What a crash leaves, after each step:
1. the copy is entered, parts of the file are there: the next attempt at the table removes the folder;
2. the files are whole, and the copy entered as finished, with what is to be registered: `hand_over` does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from penstock.destinations import copy_records
from penstock.destinations.files.storage import Storage, Written
from penstock.destinations.ledger import StreamId
from penstock.model import Lsn, TableId
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    batch: datetime
    lsn: Lsn
    rows: int
    data: Written
    schema: Written


def begin(connection: Connection, stream: StreamId, table: TableId, copy: str, folder: str) -> None:
    copy_records.begin(connection, stream, table, copy, folder, {}, empty=not folder)


def finish(connection: Connection, copy: str, finished: FinishedCopy | None) -> None:
    document = (
        {}
        if finished is None
        else asdict(finished) | {"batch": finished.batch.isoformat(), "lsn": str(finished.lsn)}
    )
    copy_records.finish(connection, copy, document)


def batch(connection: Connection, copy: str) -> datetime | None:
    """Return the timestamp of a finished copy's batch; None if the copy was empty."""
    written = copy_records.document(connection, copy).get("batch")
    return datetime.fromisoformat(written) if written else None


def take(connection: Connection, copy: str) -> FinishedCopy | None:
    """Remove and return a finished copy's record; None if the copy was empty."""
    document = copy_records.take(connection, copy).document
    if not document:
        return None
    return FinishedCopy(
        datetime.fromisoformat(document["batch"]),
        Lsn.parse(document["lsn"]),
        document["rows"],
        Written(**document["data"]),
        Written(**document["schema"]),
    )


def abandon(connection: Connection, stream: StreamId, table: TableId, storage: Storage) -> None:
    """Remove what an earlier copy of the table left that was not handed over."""
    for folder in copy_records.set_aside(connection, stream, table):
        storage.remove(storage.names(folder))
    copy_records.drop(connection, stream, table)

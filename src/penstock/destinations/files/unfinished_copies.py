"""Full copies between their beginning and when they are handed over: files that nobody knows of yet.

The ledger has each copy's folder from the beginning on. What a crash leaves, after each step:
1. the copy is entered, parts of the file are there: the next attempt at the table removes the folder;
2. the files are whole, and the copy entered as finished, with what is to be registered: `hand_over` does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from penstock.destinations.files.storage import Storage, Written
from penstock.destinations.ledger import StreamId
from penstock.model import Lsn, TableId
from penstock.model.errors import SnapshotLost
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    batch: datetime
    lsn: Lsn
    rows: int
    data: Written
    schema: Written


def begin(connection: Connection, stream: StreamId, table: TableId, copy: str, folder: str) -> None:
    connection.execute(
        """
        insert into penstock.copies
            (copy, pipeline, destination, source, table_id, set_aside, delivery, empty)
        values (%s, %s, %s, %s, %s, %s, '{}', %s)
        """,
        (copy, *stream.key, table, folder, not folder),
    )


def folders(connection: Connection, stream: StreamId, table: TableId | None = None) -> list[str]:
    """Return the folders of copies that were not handed over, of one table or of all."""
    rows = connection.execute(
        """
        select set_aside from penstock.copies
        where (pipeline, destination, source) = (%s, %s, %s) and table_id = coalesce(%s, table_id)
          and set_aside <> ''
        """,
        (*stream.key, table),
    ).fetchall()
    return [folder for (folder,) in rows]


def drop(connection: Connection, stream: StreamId, table: TableId | None = None) -> None:
    connection.execute(
        """
        delete from penstock.copies
        where (pipeline, destination, source) = (%s, %s, %s) and table_id = coalesce(%s, table_id)
        """,
        (*stream.key, table),
    )


def finish(connection: Connection, copy: str, finished: FinishedCopy | None) -> None:
    document = (
        {}
        if finished is None
        else asdict(finished) | {"batch": finished.batch.isoformat(), "lsn": str(finished.lsn)}
    )
    updated = connection.execute(
        "update penstock.copies set finished_at = now(), delivery = %s where copy = %s",
        (json.dumps(document), copy),
    )
    if not updated.rowcount:
        raise SnapshotLost("the copy was given up, another one was begun")


def batch(connection: Connection, copy: str) -> datetime | None:
    """Return the timestamp of a finished copy's batch; None if the copy was empty."""
    row = connection.execute(
        "select delivery ->> 'batch' from penstock.copies where copy = %s", (copy,)
    ).fetchone()
    return datetime.fromisoformat(row[0]) if row and row[0] else None


def take(connection: Connection, copy: str) -> FinishedCopy | None:
    """Remove and return a finished copy's record; None if the copy was empty."""
    row = connection.execute(
        "delete from penstock.copies where copy = %s and finished_at is not null returning delivery", (copy,)
    ).fetchone()
    if row is None:
        raise SnapshotLost("there is no finished copy of the table at the destination")
    document = row[0]
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
    for folder in folders(connection, stream, table):
        storage.remove(storage.names(folder))
    drop(connection, stream, table)

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
    """Folders of copies that were not handed over, of one table or of all."""
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


def finish(connection: Connection, copy: str, made: FinishedCopy | None) -> None:
    document = {} if made is None else asdict(made) | {"batch": made.batch.isoformat(), "lsn": str(made.lsn)}
    found = connection.execute(
        "update penstock.copies set finished_at = now(), delivery = %s where copy = %s",
        (json.dumps(document), copy),
    )
    if not found.rowcount:
        raise SnapshotLost("the copy was given up, another one was begun")


def batch(connection: Connection, copy: str) -> datetime | None:
    """The timestamp of a finished copy's batch; None if the copy was empty."""
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
    found = row[0]
    if not found:
        return None
    return FinishedCopy(
        datetime.fromisoformat(found["batch"]),
        Lsn.parse(found["lsn"]),
        found["rows"],
        Written(**found["data"]),
        Written(**found["schema"]),
    )


def abandon(connection: Connection, stream: StreamId, table: TableId, storage: Storage) -> None:
    """Remove what an earlier copy of the table left that was not handed over."""
    for folder in folders(connection, stream, table):
        storage.remove(storage.names(folder))
    drop(connection, stream, table)

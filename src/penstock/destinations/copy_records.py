"""Records of copies between their beginning and their hand-over, beside the ledger in PostgreSQL.

A destination puts down where a copy is set aside, before it makes it, and a document of its own: what it
needs to hand the copy over.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from penstock.destinations.ledger import StreamId
from penstock.model import TableId
from penstock.model.errors import SnapshotLost
from penstock.postgres.connection import Connection

Document = dict[str, Any]


class CopyRecord(NamedTuple):
    source: str
    document: Document
    begun_at: datetime
    empty: bool
    """Whether nothing was to be copied."""


def begin(
    connection: Connection,
    stream: StreamId,
    table: TableId,
    copy: str,
    set_aside: str,
    document: Document,
    *,
    empty: bool,
) -> None:
    connection.execute(
        """
        insert into penstock.copies
            (copy, pipeline, destination, source, table_id, set_aside, delivery, empty)
        values (%s, %s, %s, %s, %s, %s, %s, %s)
        """,
        (copy, *stream.key, table, set_aside, json.dumps(document), empty),
    )


def refuse_if_gone(connection: Connection, copy: str) -> None:
    """Raise if the copy was given up; nobody gives it up before this transaction has ended."""
    row = connection.execute("select from penstock.copies where copy = %s for key share", (copy,)).fetchone()
    if row is None:
        raise _given_up()


def finish(connection: Connection, copy: str, document: Document | None = None) -> None:
    """Record that the copy is whole, with another document if there is one. Raises if it was given up."""
    updated = connection.execute(
        "update penstock.copies set finished_at = now(), delivery = coalesce(%s, delivery) where copy = %s",
        (None if document is None else json.dumps(document), copy),
    )
    if not updated.rowcount:
        raise _given_up()


def take(connection: Connection, copy: str) -> CopyRecord:
    """Remove and return a finished copy's record."""
    record = finished(connection, copy)
    connection.execute("delete from penstock.copies where copy = %s", (copy,))
    return record


def finished(connection: Connection, copy: str) -> CopyRecord:
    row = connection.execute(
        "select source, delivery, begun_at, empty from penstock.copies"
        " where copy = %s and finished_at is not null for update",
        (copy,),
    ).fetchone()
    if row is None:
        raise SnapshotLost("there is no finished copy of the table at the destination")
    return CopyRecord(*row)


def document(connection: Connection, copy: str) -> Document:
    """Return what was put down with a copy; empty if there is none."""
    row = connection.execute("select delivery from penstock.copies where copy = %s", (copy,)).fetchone()
    return row[0] if row is not None else {}


def set_aside(connection: Connection, stream: StreamId, table: TableId | None = None) -> list[str]:
    """Return where copies are that were not handed over, of one table or of all."""
    rows = connection.execute(
        """
        select set_aside from penstock.copies
        where (pipeline, destination, source) = (%s, %s, %s) and table_id = coalesce(%s, table_id)
          and set_aside <> ''
        """,
        (*stream.key, table),
    ).fetchall()
    return [place for (place,) in rows]


def drop(connection: Connection, stream: StreamId, table: TableId | None = None) -> list[str]:
    """Remove the records of copies that were not handed over, of one table or of all; return where those
    are."""
    rows = connection.execute(
        """
        delete from penstock.copies
        where (pipeline, destination, source) = (%s, %s, %s) and table_id = coalesce(%s, table_id)
        returning set_aside
        """,
        (*stream.key, table),
    ).fetchall()
    return [place for (place,) in rows]


def _given_up() -> SnapshotLost:
    return SnapshotLost("the copy was given up, another one was begun")

"""What is kept at one source: the registry for consumers, and the ledger of how far the stream is.

Both are in the source's own database, so that one transaction has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from penstock.destinations import sql_ledger
from penstock.destinations.files.registry import FileEntry, Registry
from penstock.destinations.ledger import Ledger, StreamId
from penstock.destinations.sql_ledger import SqlLedger
from penstock.model import Lsn, TableName
from penstock.model.errors import DestinationUnready, PenstockError, TableBusy
from penstock.postgres.connection import Connection, connect, explain, wait_briefly

LOCK_MILLISECONDS = 10_000
"""For a lock on what is kept here: who wants to stop us has not long to wait, and the outage is told."""


@dataclass(slots=True)
class SourceRecords:
    conninfo: str
    stream: StreamId
    registry: Registry
    drafts: set[str] = field(default_factory=set)
    """Folders of batches that are being written, or could not be registered, as far as is known."""
    _connection: Connection | None = None

    def __repr__(self) -> str:
        return f"SourceRecords({self.stream})"

    def open(self) -> None:
        with self.transaction() as connection:
            sql_ledger.create(connection)
            self.registry.create(connection)

    def ledger(self, connection: Connection) -> Ledger:
        return SqlLedger(connection, self.stream)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction: commit at the end; on an error roll back, and give up the session."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self.conninfo, autocommit=False)
                wait_briefly(self._connection, LOCK_MILLISECONDS)
            yield self._connection
            self._connection.commit()
        except psycopg.Error as error:
            self.close()
            raise self._told(error) from None
        except BaseException:
            self.close()
            raise

    @contextmanager
    def aside(self) -> Iterator[Connection]:
        """Run a transaction in a session of its own: a copy goes on beside the stream, and beside others."""
        try:
            with connect(self.conninfo, autocommit=False) as connection:
                wait_briefly(connection, LOCK_MILLISECONDS)
                yield connection
        except psycopg.Error as error:
            raise self._told(error) from None

    def registered(self, entries: Sequence[FileEntry], ends: dict[TableName, Lsn]) -> None:
        """Call after commit: remember the new end positions, and that these folders are drafts no more."""
        self.registry.registered(ends)
        self.drafts.difference_update(entry.file.path.rpartition("/")[0] for entry in entries)

    def _told(self, error: psycopg.Error) -> PenstockError:
        explained = explain(error)
        if isinstance(explained, TableBusy):
            remedy = "Somebody has locked a table of the registry; it goes on by itself when he is done"
            explained = DestinationUnready(explained.reason, remedy=remedy)
        return explained.at(source=self.stream.source, destination=self.stream.destination)

    def close(self) -> None:
        """Close the session, and forget what was read: whether a failed commit came about is not known."""
        self.registry.forget_all()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

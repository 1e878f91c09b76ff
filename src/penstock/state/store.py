"""The store: what a pipeline remembers of its tables, schemas and progress, from one start to the next.

The pipeline opens it exclusively: it holds the lease, reads from memory, and writes through: memory changes
when the database has. What it reads is what it would read after a restart.

Everybody else (`status`, `retry`) opens it without the lease, reads the database each time, and may write
nothing but requests and decisions about the mapping (`mapping_records.py`).

Threads share a store. Writers go one after the other; readers of memory wait for nobody, so that a database
that does not answer never holds up whoever only looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select

from penstock.model import Lsn, TableId, TableSchema
from penstock.model.errors import PenstockError, StateMissing, StateOlder, from_dict, to_dict
from penstock.state import tables as t
from penstock.state.database import Database
from penstock.state.lease import Lease
from penstock.state.mapping_records import MappingRecords
from penstock.state.migrations import bring_up_to_date
from penstock.state.records import PhaseChange, Progress, Request, TableKey, TableState

__all__ = ["PhaseChange", "Progress", "Request", "Store", "TableKey", "TableState"]

HISTORY_LENGTH = 1000
"""Of each table the newest lines are kept: one that fails every minute must not fill the store."""

_Versions = list[tuple[Lsn, TableSchema]]


class Store:
    """The state of one pipeline."""

    def __init__(self, database: Database, pipeline: str, lease: Lease | None) -> None:
        """Use `open`."""
        self._database = database
        self._pipeline = pipeline
        self._lease = lease
        self._writing_now = threading.RLock()
        self.mapping = MappingRecords(database, pipeline)
        # What an exclusive store has in memory. Each is read by one operation of its dict, which is atomic.
        self._tables: dict[TableKey, TableState] = {}
        self._schemas: dict[tuple[str, TableId], _Versions] = {}
        self._progress: dict[tuple[str, str], Progress] = {}
        if lease is not None:
            self._tables = self._read_tables()
            self._schemas = self._read_schemas()
            self._progress = self._read_progress()

    @classmethod
    def open(cls, url: str, pipeline: str, *, exclusive: bool) -> Store:
        """Open the store behind `state.url`, making what is missing; `exclusive` takes the lease, and brings
        a store of an earlier version up to date.

        Raises `StateInUse` with who holds the lease, `StateUnreachable`, `StateDenied`, `WrongState`, or
        `ConfigError` for a URL that is none.
        """
        database = Database.open(url)
        lease: Lease | None = None
        try:
            if exclusive:
                bring_up_to_date(database)
            elif database.is_older:
                raise _older(database)
            lease = Lease(database, pipeline) if exclusive else None
            return cls(database, pipeline, lease)
        except BaseException:
            if lease is not None:
                lease.release()
            database.close()
            raise

    @classmethod
    def find(cls, url: str, pipeline: str) -> Store | None:
        """Open the store without the lease, if it is there; None if not: nothing is made."""
        database = Database.find(url)
        if database is not None and database.is_older:
            database.close()
            raise _older(database)
        return None if database is None else cls(database, pipeline, None)

    @classmethod
    def existing(cls, url: str, pipeline: str) -> Store:
        """Open the store without the lease; raise `StateMissing` if it is not there."""
        store = cls.find(url, pipeline)
        if store is None:
            file = url.partition(":///")[2] if url.startswith("sqlite:") else None
            raise StateMissing("nothing was started yet: there is no state store", file=file)
        return store

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raise unless the lease still holds; to be called now and then. See `Lease.check`."""
        if self._lease is not None:
            self._lease.check()

    def holder(self) -> str | None:
        """Return who holds the lease now, in words; None if nobody does."""
        holder = Lease.holder(self._database, self._pipeline)
        return None if holder is None else str(holder)

    @property
    def file(self) -> Path | None:
        """Return the file of an SQLite database; None for a server."""
        return self._database.file

    # Tables

    def tables(self, source: str | None = None, destination: str | None = None) -> list[TableState]:
        """Return the tables of this source and destination, or of all, by name."""
        states = self._tables if self._lease else self._read_tables()
        matching = [
            state
            for state in list(states.values())
            if source in (None, state.key.source) and destination in (None, state.key.destination)
        ]
        return sorted(matching, key=lambda s: (s.key.source, s.key.destination, s.name, s.key.table))

    def table(self, key: TableKey) -> TableState | None:
        return (self._tables if self._lease else self._read_tables()).get(key)

    def put(self, state: TableState, why: str = "") -> None:
        """Remember a table as it is now. A change of phase goes to the history, with the reason."""
        row = state.row()
        with self._writing_now:
            with self._writing() as connection:
                before = self._stored_phase(connection, state.key)
                self._replace(connection, t.tables, row)
                if before != state.phase:
                    self._note(connection, state.key, PhaseChange(state.phase, row["since"], why))
            self._tables[state.key] = TableState.of(row)

    def update(self, key: TableKey, change: Callable[[TableState], TableState | None], why: str = "") -> None:
        """Put what `change` makes of the table as it is now, if it is known and there is something to put."""
        with self._writing_now:
            state = self._tables.get(key)
            changed = None if state is None else change(state)
            if changed is not None:
                self.put(changed, why)

    def remove(self, key: TableKey, why: str = "no longer delivered") -> None:
        """Forget a table that is no longer delivered; its data stays, and so does its history.

        The versions of its schema go when no destination has it any more.
        """
        with self._writing_now:
            others = [k for k in self._tables if k != key and (k.source, k.table) == (key.source, key.table)]
            with self._writing() as connection:
                gone = self._stored_phase(connection, key) is not None
                self._delete(connection, t.tables, key.row())
                if gone:
                    self._note(connection, key, PhaseChange(None, datetime.now(UTC), why))
                if not others:
                    of_table = {"source": key.source, "table_id": key.table}
                    self._delete(connection, t.schemas, of_table)
            self._tables.pop(key, None)
            if not others:
                self._schemas.pop((key.source, key.table), None)

    def history(self, key: TableKey) -> list[PhaseChange]:
        """Return the phases that were stored, oldest first."""
        return [PhaseChange.of(row) for row in self._read(t.history, key.row())]

    def _stored_phase(self, connection: Connection, key: TableKey) -> str | None:
        """Return the phase as the database has it: memory may be behind a commit whose answer was lost."""
        asked = select(t.tables.c.phase).where(self._where(t.tables, key.row()))
        phase: str | None = connection.execute(asked).scalar()
        return phase

    def _note(self, connection: Connection, key: TableKey, change: PhaseChange) -> None:
        ours = self._where(t.history, key.row())
        phase = None if change.phase is None else change.phase.value
        row = {"phase": phase, "at": change.at, "why": _plain(change.why)}
        connection.execute(insert(t.history).values(pipeline=self._pipeline, **key.row(), **row))
        newest = select(t.history.c.id).where(ours).order_by(t.history.c.id.desc())
        last_to_go = newest.offset(HISTORY_LENGTH).limit(1).scalar_subquery()
        connection.execute(delete(t.history).where(ours, t.history.c.id <= last_to_go))

    # Schemas

    def schema(self, source: str, table: TableId, version: int) -> TableSchema | None:
        return next((s for _, s in self.schemas(source, table) if s.version == version), None)

    def schemas(self, source: str, table: TableId) -> list[tuple[Lsn, TableSchema]]:
        """Return the versions of a table, each with the position from which on it holds, in that order."""
        key = source, table
        asked = {"source": source, "table_id": table}
        by_table = self._schemas if self._lease else self._read_schemas(asked)
        return list(by_table.get(key, ()))

    def schema_at(self, source: str, table: TableId, lsn: Lsn) -> TableSchema | None:
        """Return the version in force at a position; None before the first."""
        held = [schema for start, schema in self.schemas(source, table) if start <= lsn]
        return held[-1] if held else None

    def learn(self, source: str, schema: TableSchema, from_lsn: Lsn) -> None:
        """Remember a version. The same version again replaces what was known of it."""
        key = source, schema.id
        with self._writing_now:
            versions = self._schemas.get(key, [])
            if (from_lsn, schema) in versions:
                return
            others = [other for other in versions if other[1].version != schema.version]
            row = {"source": source, "table_id": schema.id, "version": schema.version}
            with self._writing() as connection:
                document = {"from_lsn": from_lsn, "document": schema.to_dict()}
                self._replace(connection, t.schemas, row | document)
            self._schemas[key] = sorted([*others, (from_lsn, schema)], key=_by_position)

    # Progress

    def progress(self, source: str, destination: str) -> Progress | None:
        return (self._progress if self._lease else self._read_progress()).get((source, destination))

    def advance(
        self, source: str, destination: str, position: Lsn, *, complete_through: datetime | None, rows: int
    ) -> None:
        """Record a delivered batch. Rows and batches add up. The position never goes back, nor does the time
        that belongs to it; where no time is given the last one stays."""
        with self._writing_now:
            before = self._progress.get((source, destination))
            through = complete_through.astimezone(UTC) if complete_through else None
            reached = Progress(position, through, rows, 1, datetime.now(UTC))
            if before is not None:
                behind = position < before.position
                reached = Progress(
                    max(position, before.position),
                    before.complete_through if behind or through is None else through,
                    before.rows + rows,
                    before.batches + 1,
                    reached.updated_at,
                )
            with self._writing() as connection:
                key = {"source": source, "destination": destination}
                self._replace(connection, t.progress, key | reached.row())
            self._progress[source, destination] = reached

    def set_back(self, source: str, destination: str, position: Lsn) -> None:
        """Move the progress back: the destination lost what it had. The time is unknown then."""
        with self._writing_now:
            before = self._progress.get((source, destination))
            if before is None or before.position <= position:
                return
            reached = replace(before, position=position, complete_through=None, updated_at=datetime.now(UTC))
            with self._writing() as connection:
                key = {"source": source, "destination": destination}
                self._replace(connection, t.progress, key | reached.row())
            self._progress[source, destination] = reached

    # What holds up a destination

    def waits(self, source: str, destination: str, error: PenstockError | None) -> None:
        """Record that a whole stream waits, and for what; None: it goes on."""
        key = {"source": source, "destination": destination}
        with self._writing_now, self._writing() as connection:
            self._delete(connection, t.waits, key)
            if error is not None:
                row = key | {"since": datetime.now(UTC), "error": to_dict(error)}
                connection.execute(insert(t.waits).values(pipeline=self._pipeline, **row))

    def waiting(self, source: str, destination: str) -> tuple[datetime, PenstockError] | None:
        """Return since when a stream waits, and for what; always as the database has it."""
        rows = self._read(t.waits, {"source": source, "destination": destination})
        return (rows[0]["since"], from_dict(rows[0]["error"])) if rows else None

    # Requests

    def request(self, kind: str, what: Mapping[str, Any]) -> None:
        """Ask something of the pipeline, whether it runs or not."""
        row = {"kind": kind, "what": dict(what), "at": datetime.now(UTC)}
        with self._database.writing() as connection:
            connection.execute(insert(t.requests).values(pipeline=self._pipeline, **row))

    def requests(self) -> list[Request]:
        """Return what is asked of the pipeline, oldest first; always as the database has it."""
        return [Request.of(row) for row in self._read(t.requests)]

    def done(self, request: Request) -> None:
        with self._writing_now, self._writing() as connection:
            self._delete(connection, t.requests, {"id": request.id})

    # All of it

    def erase(self) -> None:
        """Forget everything of this pipeline, its history included."""
        with self._writing_now:
            with self._writing() as connection:
                for table in t.OF_A_PIPELINE:
                    self._delete(connection, table, {})
            self._tables, self._schemas, self._progress = {}, {}, {}

    # The database

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._lease is None:
            raise RuntimeError("only a store that was opened exclusively is written to")
        with self._database.writing() as connection:
            self._lease.confirm(connection)
            yield connection

    def _where(self, table: Table, key: Mapping[str, Any]) -> ColumnElement[bool]:
        wanted = table.c.pipeline == self._pipeline
        for name, value in key.items():
            wanted &= table.c[name] == value
        return wanted

    def _delete(self, connection: Connection, table: Table, key: Mapping[str, Any]) -> None:
        connection.execute(delete(table).where(self._where(table, key)))

    def _replace(self, connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
        """Delete, then insert. Only the holder of the lease writes: nobody inserts between the two."""
        key = {column.name: row[column.name] for column in table.primary_key if column.name != "pipeline"}
        self._delete(connection, table, key)
        connection.execute(insert(table).values(pipeline=self._pipeline, **row))

    def _read(self, table: Table, key: Mapping[str, Any] = {}) -> list[dict[str, Any]]:
        asked = select(table).where(self._where(table, key)).order_by(*table.primary_key)
        with self._database.reading() as connection:
            return [row._asdict() for row in connection.execute(asked)]

    def _read_tables(self) -> dict[TableKey, TableState]:
        states = [TableState.of(row) for row in self._read(t.tables)]
        return {state.key: state for state in states}

    def _read_schemas(self, key: Mapping[str, Any] = {}) -> dict[tuple[str, TableId], _Versions]:
        by_table: dict[tuple[str, TableId], _Versions] = {}
        for row in self._read(t.schemas, key):
            versions = by_table.setdefault((row["source"], TableId(row["table_id"])), [])
            versions.append((row["from_lsn"], TableSchema.from_dict(row["document"])))
        return {key: sorted(versions, key=_by_position) for key, versions in by_table.items()}

    def _read_progress(self) -> dict[tuple[str, str], Progress]:
        return {(row["source"], row["destination"]): Progress.of(row) for row in self._read(t.progress)}


def _by_position(version: tuple[Lsn, TableSchema]) -> tuple[Lsn, int]:
    return version[0], version[1].version


def _plain(text: str) -> str:
    """Return the text without what a database refuses: NULs, and halves of characters."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def _older(database: Database) -> StateOlder:
    return StateOlder("the state store is of an earlier version of Penstock", store=database.place)

"""The SQLite file of a mirror: the tables, and what the mirror knows of them, written together.

    __penstock_position   how far the stream of changes is applied, and which stream that is
    __penstock_tables     of each table: whether it is `live`, `loading` (it needs a snapshot) or `left out`,
                          its description, its snapshot, the last change that was applied
    __penstock_aside      changes of tables that are loading, as they came

Everything that a step changes is in one transaction. So a mirror that is killed goes on where its last
transaction ended:

1. changes are applied, or put aside for tables that are loading, and the position moves;
2. a table that cannot be followed becomes `loading`: from that position on its changes are put aside, and
   only then is a snapshot asked for;
3. rows of the snapshot go to a table of their own; a crash leaves it, and the next start drops it;
4. that table takes the name, the changes that were put aside and are not in the snapshot are applied, the
   table is `live`.

The file belongs to one process at a time; others may read it whenever they like.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.consumer.documents import SeenBy, TableDescription
from penstock.consumer.mirror_table import OURS, MirrorTable, distinct, quoted
from penstock.consumer.ordered import StreamEntry
from penstock.model import TableName
from penstock.model.errors import MirrorRefused
from penstock.model.sqlite import WAIT, make_durable
from penstock.model.visibility import Visibility

_FORMAT = 0x50656E01
"""SQLite's application_id: a mirror, and the form of its tables."""
_TABLES = """
    create table __penstock_position (
        stream text not null, created text not null, sequence integer not null
    );
    create table __penstock_tables (
        token text primary key, chosen_as text, state text not null, sqlite_name text, description text,
        snapshot_lsn text, visibility text, visible_until text, commit_lsn text, seq integer
    );
    create table __penstock_aside (
        token text, sequence integer, subject text not null, payload blob not null,
        primary key (token, sequence)
    );
"""


class MirrorState(StrEnum):
    LIVE = "live"
    LOADING = "loading"
    LEFT_OUT = "left out"


@dataclass(slots=True)
class MirroredTable:
    token: str
    state: MirrorState = MirrorState.LOADING
    chosen_as: str | None = None
    """`schema.table` when it was chosen: a table stays chosen when it is renamed."""
    sqlite_name: str | None = None
    description: TableDescription | None = None
    snapshot_lsn: str = ""
    visibility: Visibility | None = None
    """What the snapshot contains; None: no change that comes now can be in it."""
    visible_until: str = ""
    last: tuple[str, int] = ("", 0)
    """The last change that was applied."""
    rows: MirrorTable | None = None
    seen: SeenBy | None = None

    def prepare(self) -> None:
        """Make what it needs to be changed."""
        if self.state is MirrorState.LIVE and self.description is not None and self.sqlite_name is not None:
            self.rows = MirrorTable(self.description, self.sqlite_name)
            self.seen = SeenBy(self.visibility) if self.visibility else None


class MirrorFile:
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        row = connection.execute("select stream, created, sequence from __penstock_position").fetchone()
        self.stream: str = row[0] if row else ""
        self.created: str = row[1] if row else ""
        self.sequence: int = row[2] if row else 0
        self.tables: dict[str, MirroredTable] = {}
        self._read_tables()
        self._staged = 0

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[MirrorFile]:
        """Open the mirror, or make one. Raises MirrorRefused: somebody else's file, or in use."""
        with _locked(path):
            try:
                connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
            except sqlite3.Error as error:
                raise MirrorRefused(f"the file cannot be opened: {error}", file=path) from None
            try:
                make_durable(connection)
                _prepare(connection, path)
                yield cls(connection, path)
            except sqlite3.Error as error:
                raise MirrorRefused(
                    f"the file cannot be read or written: {error}",
                    file=path,
                    remedy="Mend that, or name another file; what it had is kept",
                ) from None
            finally:
                connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write what is done inside all at once; after an exception the list of tables is as before, too."""
        tables = dict(self.tables)
        self.connection.execute("begin immediate")
        try:
            yield
            self.connection.execute("commit")
        except BaseException:
            self.tables = tables
            if self.connection.in_transaction:
                self.connection.execute("rollback")
            raise

    def start_over(self, stream: str, created: str, sequence: int) -> None:
        """Follow a stream from here on; every table needs a snapshot."""
        with self.transaction():
            self.connection.execute("delete from __penstock_position")
            self.connection.execute(
                "insert into __penstock_position values (?, ?, ?)", (stream, created, sequence)
            )
            self.connection.execute("delete from __penstock_aside")
            for table in self.tables.values():
                if table.state is MirrorState.LIVE:
                    table.state = MirrorState.LOADING
                    self.save(table)
        self.stream, self.created, self.sequence = stream, created, sequence

    def advance(self, sequence: int) -> None:
        moved = self.connection.execute(
            "update __penstock_position set sequence = ? where sequence = ?", (sequence, self.sequence)
        )
        if moved.rowcount != 1:
            raise MirrorRefused("somebody else has written to the mirror", file=self.path)

    def save(self, table: MirroredTable) -> None:
        description = json.dumps(table.description.document) if table.description else None
        visibility = str(table.visibility) if table.visibility else None
        self.connection.execute(
            "insert or replace into __penstock_tables values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(table.token, table.chosen_as, table.state.value, table.sqlite_name, description),
                *(table.snapshot_lsn, visibility, table.visible_until, *table.last),
            ),
        )
        self.tables[table.token] = table

    def remove(self, table: MirroredTable) -> None:
        """Forget a table, rows and all."""
        self._drop(table.sqlite_name)
        self.empty_aside(table.token)
        self.forget(table.token)

    def forget(self, token: str) -> None:
        """Forget what is known under a name; the rows stay."""
        self.connection.execute("delete from __penstock_tables where token = ?", (token,))
        self.tables.pop(token, None)

    def by_relation(self, relation: tuple[str, int]) -> MirroredTable | None:
        return next(iter(self.all_of(relation)), None)

    def all_of(self, relation: tuple[str, int]) -> list[MirroredTable]:
        """Return what is known of a table, under all names: several only while they are loading."""
        return [
            table
            for table in self.tables.values()
            if table.description is not None and table.description.relation == relation
        ]

    def put_aside(self, token: str, entry: StreamEntry) -> None:
        self.connection.execute(
            "insert or ignore into __penstock_aside values (?, ?, ?, ?)",
            (token, entry.sequence, entry.subject, entry.data),
        )

    def aside(self, token: str) -> Iterator[StreamEntry]:
        rows = self.connection.execute(
            "select sequence, subject, payload from __penstock_aside where token = ? order by sequence",
            (token,),
        )
        return (StreamEntry(sequence, subject, payload, None, 0) for sequence, subject, payload in rows)

    def move_aside(self, token: str, other: str) -> None:
        self.empty_aside(other)
        self.connection.execute("update __penstock_aside set token = ? where token = ?", (other, token))

    def empty_aside(self, token: str) -> None:
        self.connection.execute("delete from __penstock_aside where token = ?", (token,))

    def staged(self, description: TableDescription) -> MirrorTable:
        """Create a table for the rows of a snapshot."""
        self._staged += 1
        rows = MirrorTable(description, f"{OURS}new_{self._staged}")
        with self.transaction():
            rows.create(self.connection)
        return rows

    def drop_staged(self, staged: MirrorTable) -> None:
        self._drop(staged.name)

    def take_place(self, staged: MirrorTable, table: MirroredTable) -> None:
        """Let the rows of a snapshot be the table's."""
        assert table.description is not None
        self._drop(table.sqlite_name)
        table.sqlite_name = self.free_name(table.description.name)
        self.rename(staged.name, table.sqlite_name)

    def rename(self, before: str, after: str) -> None:
        self.connection.execute(f"alter table {quoted(before)} rename to {quoted(after)}")

    def free_name(self, name: str, *, but: str | None = None) -> str:
        """Return what a table of the source can be called here."""
        parsed = TableName.parse(name)
        wanted = parsed.name if parsed.schema == "public" else f"{parsed.schema}_{parsed.name}"
        if wanted.lower().startswith(("sqlite_", OURS)):
            wanted = f"_{wanted}"
        listed = self.connection.execute("select name from sqlite_schema").fetchall()
        return distinct([wanted], [taken for (taken,) in listed if taken != but])[0]

    def _drop(self, sqlite_name: str | None) -> None:
        if sqlite_name is not None:
            self.connection.execute(f"drop table if exists {quoted(sqlite_name)}")

    def _read_tables(self) -> None:
        columns = (
            "token, chosen_as, state, sqlite_name, description, snapshot_lsn, visibility, visible_until,"
            " commit_lsn, seq"
        )
        for row in self.connection.execute(f"select {columns} from __penstock_tables"):
            token, chosen_as, state, name, description, lsn, visibility, until, *last = row
            table = MirroredTable(
                token,
                MirrorState(state),
                chosen_as,
                name,
                TableDescription.of(json.loads(description)) if description else None,
                lsn,
                Visibility.parse(visibility) if visibility else None,
                until,
                (last[0], last[1]),
            )
            table.prepare()
            self.tables[token] = table


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MirrorRefused(f"the file cannot be opened: {error.strerror}", file=path) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MirrorRefused(
                "another process keeps this mirror", file=path, remedy="Stop that one, or name another file"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new mirror; of one that was killed, remove what nobody will finish."""
    (format,) = connection.execute("pragma application_id").fetchone()
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    if not names:
        connection.executescript(f"begin immediate; {_TABLES} pragma application_id = {_FORMAT}; commit;")
    elif format != _FORMAT:
        raise MirrorRefused("the file is no mirror of ours, or of another version", file=path)
    for name in names:
        if name.startswith(f"{OURS}new_"):
            connection.execute(f"drop table {quoted(name)}")

"""The SQLite file of a mirror: the tables, and what the mirror knows of them, written together.

    __penstock_position   how far the stream of changes is applied, and which stream that is
    __penstock_tables     of each table: what it is called, whether it is `live`, `loading` (it needs a
                          snapshot) or `left out`, its description, its snapshot, the last change that was
                          applied
    __penstock_aside      changes of tables that are loading, as they came

Everything that a step changes is in one transaction. So a mirror that is killed goes on where its last
transaction ended:

1. changes are applied, or put aside for tables that are loading, and the position moves;
2. a table that cannot be followed becomes `loading`: from that position on its changes are put aside, and
   only then is a snapshot asked for;
3. rows of the snapshot go to a table of their own; a crash leaves it, and the next start drops it;
4. that table takes the name, the changes that were put aside and are not in the snapshot are applied, the
   table is `live`.

A table is known by its source and its oid, `relation`: names pass from one to another, and a change says
whose it is. A table whose name another has taken has none (`token` is null) until the stream, or the bucket,
tells its new one.

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
from penstock.model.formats import Steps, carry_out, refusal
from penstock.model.sqlite import WAIT, make_durable
from penstock.model.visibility import Visibility

_MIRROR = 0x50656E
_FORMAT = 1
"""SQLite's application_id is both: a mirror, and in its last byte the format of its tables."""
STEPS: Steps = {}
_TABLES = """
    create table __penstock_position (
        stream text not null, created text not null, sequence integer not null
    );
    create table __penstock_tables (
        source text, relation_id integer, token text, name text, state text not null, chosen_as text,
        sqlite_name text, description text, snapshot_lsn text, visibility text, visible_until text,
        commit_lsn text, seq integer,
        primary key (source, relation_id)
    );
    create table __penstock_aside (
        source text, relation_id integer, sequence integer, subject text not null, payload blob not null,
        primary key (source, relation_id, sequence)
    );
"""
_OF = "source = ? and relation_id = ?"


class MirrorState(StrEnum):
    LIVE = "live"
    LOADING = "loading"
    LEFT_OUT = "left out"


Relation = tuple[str, int]
"""A source, and the oid that a table has there."""


@dataclass(slots=True)
class MirroredTable:
    relation: Relation
    token: str | None = None
    """What it is called in subjects; None: nobody has told yet, or another table has taken its name."""
    name: str | None = None
    """`schema.table`, where the stream or the bucket has told."""
    state: MirrorState = MirrorState.LOADING
    chosen_as: str | None = None
    """`schema.table` when it was chosen: a table stays chosen when it is renamed."""
    sqlite_name: str | None = None
    description: TableDescription | None = None
    snapshot_lsn: str = ""
    asked_at: int = 0
    """The last sequence in the stream when the snapshot was asked for; 0: before this mirror began to run."""
    visibility: Visibility | None = None
    """What the snapshot contains; None: no change that comes now can be in it."""
    visible_until: str = ""
    last: tuple[str, int] = ("", 0)
    """The last change that was applied."""
    rows: MirrorTable | None = None
    seen: SeenBy | None = None

    @property
    def called(self) -> str:
        """What to call it, for people."""
        return self.token or self.name or f"a table of {self.relation[0]} (oid {self.relation[1]})"

    def prepare(self) -> None:
        """Make what it needs to be changed."""
        if self.state is MirrorState.LIVE and self.description is not None and self.sqlite_name is not None:
            self.rows = MirrorTable(self.description, self.sqlite_name)
            self.seen = SeenBy(self.visibility, self.visible_until) if self.visibility else None


class MirrorFile:
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        row = connection.execute("select stream, created, sequence from __penstock_position").fetchone()
        self.stream: str = row[0] if row else ""
        self.created: str = row[1] if row else ""
        self.sequence: int = row[2] if row else 0
        self.tables: dict[Relation, MirroredTable] = {}
        self.by_token: dict[str, MirroredTable] = {}
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
                # Users' views go by name: they outlive the table, and do not keep another from taking it.
                connection.execute("pragma legacy_alter_table = on")
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
        tables, by_token = dict(self.tables), dict(self.by_token)
        self.connection.execute("begin immediate")
        try:
            yield
            self.connection.execute("commit")
        except BaseException:
            self.tables, self.by_token = tables, by_token
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
            "insert or replace into __penstock_tables values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(*table.relation, table.token, table.name, table.state.value, table.chosen_as),
                *(table.sqlite_name, description, table.snapshot_lsn, visibility, table.visible_until),
                *table.last,
            ),
        )
        self._know(table)

    def remove(self, table: MirroredTable) -> None:
        """Forget a table, rows and all."""
        self._drop(table.sqlite_name)
        self.empty_aside(table.relation)
        self.connection.execute(f"delete from __penstock_tables where {_OF}", table.relation)
        self.tables.pop(table.relation, None)
        self._free_token(table)

    def call(self, table: MirroredTable, token: str, name: str | None) -> None:
        """Let a table have a name that no other has."""
        self._free_token(table)
        table.token, table.name = token, name
        if table.sqlite_name is not None and name is not None:
            self._rename_rows(table, self.free_name(name, but=table.sqlite_name))
        self.save(table)

    def take_name(self, table: MirroredTable) -> None:
        """Let a table have no name: its rows are kept, where nobody sees them."""
        self._free_token(table)
        table.token = table.name = None
        if table.sqlite_name is not None:
            self._rename_rows(table, self._hidden_name(table))
        self.save(table)

    def put_aside(self, relation: Relation, entry: StreamEntry) -> None:
        self.connection.execute(
            "insert or ignore into __penstock_aside values (?, ?, ?, ?, ?)",
            (*relation, entry.sequence, entry.subject, entry.data),
        )

    def aside(self, relation: Relation) -> Iterator[StreamEntry]:
        rows = self.connection.execute(
            f"select sequence, subject, payload from __penstock_aside where {_OF} order by sequence",
            relation,
        )
        return (StreamEntry(sequence, subject, payload, None, 0) for sequence, subject, payload in rows)

    def empty_aside(self, relation: Relation) -> None:
        self.connection.execute(f"delete from __penstock_aside where {_OF}", relation)

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
        self._drop(table.sqlite_name)
        table.sqlite_name = staged.name
        self._rename_rows(table, self.free_name(table.name) if table.name else self._hidden_name(table))

    def free_name(self, name: str, *, but: str | None = None) -> str:
        """Return what a table of the source can be called here."""
        parsed = TableName.parse(name)
        wanted = parsed.name if parsed.schema == "public" else f"{parsed.schema}_{parsed.name}"
        if wanted.lower().startswith(("sqlite_", OURS)):
            wanted = f"_{wanted}"
        listed = self.connection.execute("select name from sqlite_schema").fetchall()
        return distinct([wanted], [taken for (taken,) in listed if taken != but])[0]

    def _hidden_name(self, table: MirroredTable) -> str:
        return f"{OURS}nameless_{table.relation[1]}_{table.relation[0]}"

    def _rename_rows(self, table: MirroredTable, after: str) -> None:
        assert table.sqlite_name is not None
        if table.sqlite_name != after:
            self.connection.execute(f"alter table {quoted(table.sqlite_name)} rename to {quoted(after)}")
            table.sqlite_name = after
            table.prepare()

    def _know(self, table: MirroredTable) -> None:
        self.tables[table.relation] = table
        if table.token is not None:
            self.by_token[table.token] = table

    def _free_token(self, table: MirroredTable) -> None:
        if table.token is not None and self.by_token[table.token].relation == table.relation:
            del self.by_token[table.token]

    def _drop(self, sqlite_name: str | None) -> None:
        if sqlite_name is not None:
            self.connection.execute(f"drop table if exists {quoted(sqlite_name)}")

    def _read_tables(self) -> None:
        for row in self.connection.execute("select * from __penstock_tables"):
            source, id, token, table_name, state, chosen_as, *row = row
            name, description, lsn, visibility, until, *last = row
            table = MirroredTable(
                (source, id),
                token,
                table_name,
                MirrorState(state),
                chosen_as,
                name,
                TableDescription.of(json.loads(description)) if description else None,
                lsn,
                visibility=Visibility.parse(visibility) if visibility else None,
                visible_until=until,
                last=(last[0], last[1]),
            )
            table.prepare()
            self._know(table)


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
    (id,) = connection.execute("pragma application_id").fetchone()
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    if not names:
        connection.executescript(f"begin immediate; {_TABLES} {_marked(_FORMAT)}; commit;")
    elif id >> 8 != _MIRROR:
        raise MirrorRefused("the file is no mirror of ours", file=path)
    elif id & 0xFF != _FORMAT:
        _bring_up_to_date(connection, id & 0xFF, path)
    for name in names:
        if name.startswith(f"{OURS}new_"):
            connection.execute(f"drop table {quoted(name)}")


def _bring_up_to_date(connection: sqlite3.Connection, stored: int, path: Path) -> None:
    connection.execute("begin immediate")  # an error closes the connection, and with that takes it back
    if carry_out(STEPS, stored, connection.execute) != _FORMAT:
        raise MirrorRefused(**refusal("the mirror", stored, _FORMAT, None), file=path)
    connection.execute(_marked(_FORMAT))
    connection.execute("commit")


def _marked(format: int) -> str:
    return f"pragma application_id = {_MIRROR << 8 | format}"

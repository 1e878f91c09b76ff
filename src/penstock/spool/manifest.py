"""The manifest: which segments exist, how far capture came, and how far each consumer read.

A segment exists when the manifest says so, and the manifest says so in the transaction that also moves the
position: readers see whole transactions of the source or nothing of them. One process writes segments (it
holds the spool's lock); consumers move their own row. SQLite in WAL mode serves both at once.

A *position* `p` means: all that committed before `p`. A segment covers the half-open range
`[start_lsn, end_lsn)` of commit positions; the segments of one large transaction share theirs.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.model import Lsn, Reached, TableId, TableSchema, private
from penstock.model.errors import PenstockError, PositionGone, SpoolDamaged, WrongSpool
from penstock.model.formats import Steps, carry_out, refusal
from penstock.model.sqlite import WAIT, make_durable
from penstock.spool.identity import Identity, explained, identity_of, refuse_another
from penstock.spool.segment import Segment, SegmentPart

FORMAT = 2
STEPS: Steps = {}
"""What brings a manifest of an earlier version up to date. (1 had other segments, and was not released.)"""

_TABLES = """
create table if not exists meta (key text primary key, value text not null) without rowid;
create table if not exists segments (
    id        integer primary key,
    file      text    not null unique,
    start_lsn integer not null,
    end_lsn   integer not null,
    rows      integer not null,
    bytes     integer not null
);
create index if not exists segments_by_end on segments (end_lsn);
create table if not exists parts (
    segment_id      integer not null references segments (id) on delete cascade,
    table_id        integer not null,
    schema_version  integer not null,
    first_batch integer not null,
    batches      integer not null,
    rows            integer not null,
    primary key (segment_id, first_batch)
) without rowid;
create table if not exists schemas (
    table_id integer not null,
    version  integer not null,
    from_lsn integer not null,
    document text    not null,
    primary key (table_id, version)
) without rowid;
create table if not exists consumers (
    name       text primary key,
    position   integer not null,
    updated_at text    not null default current_timestamp
) without rowid;
create table if not exists destinations (name text primary key) without rowid;
"""

_COUNT = """
insert into meta values ('rows', :rows)
on conflict (key) do update set value = cast(value as integer) + :rows
"""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment and the range of commit positions it covers."""

    segment: Segment
    start: Lsn
    end: Lsn


class Manifest:
    def __init__(self, spool: Path) -> None:
        self.path = spool / "manifest.db"
        self._using = threading.RLock()
        with explained(self.path):
            self._db = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        try:
            with explained(self.path):
                make_durable(self._db)
                self._db.execute("pragma foreign_keys = on")
        except PenstockError:
            self._db.close()
            raise

    @classmethod
    def create(cls, spool: Path, identity: Identity, start: Lsn) -> Manifest:
        """Open the manifest of this identity, making it where there is none; `start` is for a new one."""
        private.folder(spool)
        refuse_another(spool, identity)
        private.file(spool / "manifest.db")  # the files that SQLite puts beside it get its mode
        manifest = cls(spool)
        try:
            manifest._begin(identity, start)
        except BaseException:
            manifest.close()
            raise
        return manifest

    def _begin(self, identity: Identity, start: Lsn) -> None:
        with explained(self.path):
            self._db.executescript(_TABLES)
        with self.transaction() as db:
            meta = dict(db.execute("select key, value from meta"))
            if not meta:
                begin = {"position": str(start.value), "retired": str(start.value)}
                fresh = {"format": str(FORMAT), **asdict(identity), **begin}
                db.executemany("insert into meta values (?, ?)", fresh.items())
            else:
                meta["format"] = str(carry_out(STEPS, int(meta.get("format", 0)), db.execute))
                self._check_format(meta)
                db.execute("update meta set value = ? where key = 'format'", (meta["format"],))
            db.execute("insert or replace into meta values ('written_by', ?)", (__version__,))

    @classmethod
    def open(cls, spool: Path) -> Manifest:
        """Open an existing manifest, as a reader does."""
        if not (spool / "manifest.db").exists():
            raise SpoolDamaged("there is no spool here yet", file=spool, remedy="Start capture first")
        manifest = cls(spool)
        try:
            if manifest.rows("select 1 from sqlite_master where name = 'meta'"):
                manifest._check_format(dict(manifest.rows("select key, value from meta")))
        except BaseException:
            manifest.close()
            raise
        return manifest

    def _check_format(self, meta: Mapping[str, str]) -> None:
        """Raise `WrongSpool` unless we know the format; a spool that nobody has begun yet has none."""
        if meta and meta.get("format") != str(FORMAT):
            why = refusal("the spool", meta.get("format"), FORMAT, meta.get("written_by"))
            if int(meta.get("format", 0)) in STEPS:
                why["remedy"] = "Start capture with this version: it brings the spool up to date"
            raise WrongSpool(**why, file=self.path)

    def close(self) -> None:
        with self._using:  # SQLite crashes where a connection is closed that another thread reads from
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._using, explained(self.path):
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # on a full disk SQLite has rolled back by itself
                    self._db.execute("rollback")
                raise

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Return all rows at once. Several threads share the connection: a read that one has not finished
        would make SQLite refuse to begin a transaction."""
        with self._using, explained(self.path):
            return self._db.execute(statement, values).fetchall()

    # Positions

    def _meta(self, key: str) -> int:
        rows = self.rows("select value from meta where key = ?", (key,))
        if not rows:
            raise SpoolDamaged(f"the manifest has no {key}", file=self.path)
        return int(rows[0][0])

    @property
    def position(self) -> Lsn:
        """How far capture came: all that committed before is in the segments (or was consumed)."""
        return Lsn(self._meta("position"))

    @property
    def retired(self) -> Lsn:
        """Where the spool begins: of what committed before, something is gone or was never here."""
        return Lsn(self._meta("retired"))

    @property
    def timeline(self) -> int | None:
        """The server's timeline on which the position was reached; None: an earlier version wrote it."""
        rows = self.rows("select value from meta where key = 'timeline'")
        return int(rows[0][0]) if rows else None

    def enter_timeline(self, timeline: int) -> None:
        """Record that the position was reached, and all that follows is read, on this timeline."""
        with self.transaction() as db:
            db.execute("insert or replace into meta values ('timeline', ?)", (str(timeline),))

    def record(self, position: Lsn, segments: Sequence[Segment], schemas: Iterable[TableSchema]) -> None:
        """Make segments visible and move the position to `position`, at once."""
        with self.transaction() as db:
            start = self._meta("position")
            for schema in schemas:
                db.execute(
                    "insert or replace into schemas values (?, ?, ?, ?)",
                    (schema.id, schema.version, start, json.dumps(schema.to_dict())),
                )
            for segment in segments:
                added = db.execute(
                    "insert into segments (file, start_lsn, end_lsn, rows, bytes) values (?, ?, ?, ?, ?)",
                    (segment.file, start, position.value, segment.rows, segment.bytes),
                )
                db.executemany(
                    "insert into parts values (?, ?, ?, ?, ?, ?)",
                    [
                        (
                            added.lastrowid,
                            p.table_id,
                            p.schema_version,
                            p.first_batch,
                            p.batches,
                            p.rows,
                        )
                        for p in segment.parts
                    ],
                )
            db.execute("update meta set value = ? where key = 'position'", (str(position.value),))
            if segments:
                last = max(int(Path(segment.file).stem) for segment in segments)
                db.execute("insert or replace into meta values ('last_segment', ?)", (str(last),))
                db.execute(_COUNT, {"rows": sum(segment.rows for segment in segments)})

    @property
    def recorded(self) -> int:
        """How many changes were ever recorded, as far as this version has counted."""
        return sum(int(value) for (value,) in self.rows("select value from meta where key = 'rows'"))

    # Segments

    def size(self) -> int:
        """Return the bytes of all segments."""
        return int(self.rows("select coalesce(sum(bytes), 0) from segments")[0][0])

    def entries(self, start: Lsn, end: Lsn) -> list[SegmentEntry]:
        """Return the segments of `[start, end)`, in order; both are positions that `next_position` gave."""
        self._refuse_if_gone(start)
        parts: dict[int, list[SegmentPart]] = {}
        for segment_id, *part in self.rows(
            """select segment_id, table_id, schema_version, first_batch, batches, p.rows
                 from parts p join segments s on s.id = p.segment_id
                where s.end_lsn > ? and s.end_lsn <= ? order by segment_id, first_batch""",
            (start.value, end.value),
        ):
            parts.setdefault(segment_id, []).append(SegmentPart(*part))
        segments = self.rows(
            """select id, file, rows, bytes, start_lsn, end_lsn from segments
                where end_lsn > ? and end_lsn <= ? order by id""",
            (start.value, end.value),
        )
        return [
            SegmentEntry(Segment(file, rows, size, tuple(parts.get(id, ()))), Lsn(first), Lsn(last))
            for id, file, rows, size, first, last in segments
        ]

    def next_position(self, start: Lsn, max_rows: int | None = None, max_bytes: int | None = None) -> Lsn:
        """Return how far a consumer at `start` can read: at least one transaction, then up to the limits.

        It is `start` itself while nothing has come, even as the captured position moves on.
        """
        self._refuse_if_gone(start)
        rows_read, bytes_read, reached = 0, 0, start.value
        for end, rows, size in self.rows(
            """select end_lsn, sum(rows), sum(bytes) from segments where end_lsn > ?
                group by end_lsn order by end_lsn""",
            (start.value,),
        ):
            rows_read, bytes_read = rows_read + rows, bytes_read + size
            over = max_rows is not None and rows_read > max_rows
            over = over or (max_bytes is not None and bytes_read > max_bytes)
            if over and reached > start.value:
                break
            reached = end
        return Lsn(reached)

    def _refuse_if_gone(self, start: Lsn) -> None:
        if start < self.retired:
            raise PositionGone(
                f"changes are asked for from {start} on, and the spool begins at {self.retired}",
                file=self.path.parent,
            )
        if start > self.position:
            raise PositionGone(
                f"changes are asked for from {start} on, and capture has only come to {self.position}: "
                "this spool is not the one that position was taken from",
                file=self.path.parent,
            )

    # Schemas

    def schemas(self) -> dict[tuple[TableId, int], TableSchema]:
        rows = self.rows("select document from schemas order by table_id, version")
        schemas = [TableSchema.from_dict(json.loads(document)) for (document,) in rows]
        return {(schema.id, schema.version): schema for schema in schemas}

    # Consumers

    def register(self, consumer: str, position: Lsn) -> None:
        """Name a consumer, so that nothing it has still to read is removed. A known one keeps its place."""
        with self.transaction() as db:
            db.execute(
                "insert into consumers (name, position) values (?, ?) on conflict (name) do nothing",
                (consumer, position.value),
            )

    def advance(self, consumer: str, position: Lsn) -> None:
        """Record that `consumer` has made everything before `position` durable. Never goes back."""
        with self.transaction() as db:
            db.execute(
                """insert into consumers (name, position) values (?, ?)
                   on conflict (name) do update set position = excluded.position,
                       updated_at = current_timestamp where excluded.position > position""",
                (consumer, position.value),
            )

    def rewind(self, consumer: str, position: Lsn) -> bool:
        """Move a consumer back, if the spool still has all that follows; return whether it has."""
        with self.transaction() as db:
            if position < self.retired:
                return False
            db.execute(
                """insert into consumers (name, position) values (?, ?)
                   on conflict (name) do update set position = excluded.position
                   where excluded.position < position""",
                (consumer, position.value),
            )
        return True

    def forget(self, consumer: str) -> None:
        with self.transaction() as db:
            db.execute("delete from consumers where name = ?", (consumer,))

    def consumers(self) -> dict[str, Lsn]:
        return {name: Lsn(position) for name, position in self.rows("select name, position from consumers")}

    def retire(self, before: Lsn) -> list[str]:
        """Take segments out of the manifest that end at or before `before`; their files may then go."""
        with self.transaction() as db:
            gone = db.execute(
                "select file, end_lsn from segments where end_lsn <= ?", (before.value,)
            ).fetchall()
            if gone:
                last = max(end for _, end in gone)
                db.execute("delete from segments where end_lsn <= ?", (before.value,))
                db.execute("update meta set value = ? where key = 'retired'", (str(last),))
        return [file for file, _ in gone]

    @property
    def last_segment(self) -> int:
        """The number of the newest segment that ever was: no name means two segments, one after the other."""
        recorded = self.rows("select value from meta where key = 'last_segment'")
        numbers = [int(value) for (value,) in recorded] + [int(Path(file).stem) for file in self.files()]
        return max(numbers, default=0)

    def files(self) -> set[str]:
        return {file for (file,) in self.rows("select file from segments")}


def position(spool: Path) -> Lsn | None:
    """Return how far capture came in this spool; None where it never began."""
    progress = reached(spool)
    return progress.position if progress else None


def reached(spool: Path) -> Reached | None:
    """Return how far capture came in this spool, and on which server; None where it never began."""
    identity = identity_of(spool)
    if identity is None:
        return None
    with closing(Manifest(spool)) as manifest:
        return Reached(manifest.position, manifest.timeline, identity.system_id)

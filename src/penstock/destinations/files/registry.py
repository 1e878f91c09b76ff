"""The registry: what consumers of the files read, in the source's own database, never published.

A file is there for somebody once it is in `file_log`. A table's entries have strictly growing `end_lsn`, and
appear in that order: who asks for those beyond the last one he saw misses none and sees none twice, and the
order in which he gets them is the one to apply them in. A file's `end_lsn` is where its last change
committed (of a full copy, where its snapshot was taken); where that would not be beyond the entry before, it
is one more than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.destinations.files.compression import Meter
from penstock.destinations.files.layout import next_batch
from penstock.destinations.files.storage import Written
from penstock.model import ZERO, Lsn, TableId, TableName, TableSchema
from penstock.model.errors import ConfigError
from penstock.postgres import ownership
from penstock.postgres.connection import Connection

_TABLES = """
create table if not exists {schema}.file_log (
    id              bigint      generated always as identity primary key,
    table_name      text        not null,
    batch_timestamp timestamp   not null,
    file_path       text        not null,
    file_type       varchar(20) not null,
    start_lsn       pg_lsn      not null,
    end_lsn         pg_lsn      not null,
    row_count       bigint      not null,
    has_ddl         boolean     not null default false,
    file_size_bytes bigint      not null,
    sha256          char(64)    not null,
    created_at      timestamptz not null default now(),
    unique (table_name, end_lsn)
);

create table if not exists {schema}.table_state (
    table_name         text        primary key,
    table_id           bigint      not null,
    current_mode       varchar(20) not null,
    last_streaming_lsn pg_lsn,
    reload_export_id   uuid,
    reload_start_lsn   pg_lsn,
    complete_through   timestamptz,
    pipeline           text        not null,
    destination        text        not null,
    updated_at         timestamptz not null default now()
);

create table if not exists {schema}.reload_operations (
    export_id        uuid        primary key,
    table_name       text        not null,
    table_id         bigint      not null,
    start_marker_lsn pg_lsn      not null,
    end_marker_lsn   pg_lsn,
    status           varchar(20) not null,
    external         boolean     not null,
    delta_strategy   varchar(20) not null,
    snapshot         text,
    rows_exported    bigint,
    delta_rows       bigint,
    delta_applied    bigint,
    reason           text,
    created_at       timestamptz not null default now(),
    completed_at     timestamptz
);

alter table {schema}.reload_operations add column if not exists reason text;

create table if not exists {schema}.consumers (
    consumer   text        not null,
    table_name text        not null,
    last_lsn   pg_lsn      not null,
    updated_at timestamptz not null default now(),
    primary key (consumer, table_name)
);

create table if not exists {schema}.removals (
    file_path text primary key
);
"""

TABLES = ("file_log", "table_state", "reload_operations", "consumers", "removals")

_COMPLETE = """
    select to_regclass(format('%%I.removals', %(schema)s::text)) is not null and exists (
        select from pg_attribute where attname = 'reason'
           and attrelid = to_regclass(format('%%I.reload_operations', %(schema)s::text)))
"""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file to be registered."""

    table: TableName
    batch: datetime
    type: str
    file: Written
    start: Lsn
    end: Lsn
    rows: int = 0
    has_ddl: bool = False
    meter: Meter | None = None
    """If it was compressed."""


@dataclass(frozen=True, slots=True)
class Last:
    """The newest entry of a table."""

    end: Lsn = ZERO
    batch: datetime | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    schema: str
    pipeline: str
    destination: str
    enabled: bool = True
    _last: dict[TableName, Last] = field(default_factory=dict)
    _taken: dict[TableName, datetime] = field(default_factory=dict)
    """The newest timestamps that were given out: what is there under them may not be registered yet."""
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def create(self, connection: Connection) -> None:
        """Make what is missing; refuse a registry of another destination, or one that somebody else owns."""
        if not self.enabled:
            return
        complete = connection.execute(_COMPLETE, {"schema": self.schema}).fetchone()
        if complete != (True,):
            ownership.make_schema(connection, self.schema)
        ownership.check(connection, self.schema, TABLES)
        if complete != (True,):
            connection.execute(self.sql(_TABLES))
        other = connection.execute(
            self.sql(
                "select pipeline, destination from {schema}.table_state"
                " where (pipeline, destination) <> (%s, %s) limit 1"
            ),
            (self.pipeline, self.destination),
        ).fetchone()
        if other is not None:
            raise ConfigError(
                f"the registry {self.schema} is that of pipeline {other[0]}, destination {other[1]}",
                remedy="Give this destination a registry of its own: file_registry.schema",
            )

    def look_again(self, connection: Connection, table: TableName, copied: datetime | None) -> None:
        """Read the newest entry anew: others may have added some. The next batch is later than the copy's."""
        before = self._last.pop(table, Last())
        newest = self.last(connection, table)
        batches = [batch for batch in (before.batch, newest.batch, copied) if batch is not None]
        self._last[table] = Last(max(before.end, newest.end), max(batches, default=None))

    def last(self, connection: Connection, table: TableName) -> Last:
        """Return the newest entry. It is read once: others add entries only with a copy of their own."""
        if table not in self._last:
            row = None
            if self.enabled:
                row = connection.execute(
                    self.sql(
                        "select max(end_lsn)::text, max(batch_timestamp) filter (where"
                        " isfinite(batch_timestamp)) from {schema}.file_log"
                        " where table_name = %s"
                    ),
                    (str(table),),
                ).fetchone()
            newest = Last(Lsn.parse(row[0]), row[1]) if row and row[0] else Last()
            batches = [batch for batch in (newest.batch, self._taken.get(table)) if batch is not None]
            self._last[table] = Last(newest.end, max(batches, default=None))
        return self._last[table]

    def forget_all(self) -> None:
        """Forget what was read, but not which timestamps were given out."""
        self._last.clear()

    def take_next(
        self, connection: Connection, table: TableName, is_free: Callable[[datetime], bool]
    ) -> datetime:
        """Return a timestamp for a batch that begins now. The next one gets a later one, whatever becomes of
        this: copies are made in threads of their own, and names pass from table to table."""
        with self._taking:
            last = self.last(connection, table)
            batch = next_batch(datetime.now(UTC), last.batch)
            while not is_free(batch):
                batch += timedelta(seconds=1)
            self._last[table], self._taken[table] = Last(last.end, batch), batch
            return batch

    def register(
        self, connection: Connection, entries: Sequence[FileEntry], shown: Iterable[str]
    ) -> dict[TableName, Lsn]:
        """Enter files, which stand in the order in which they are to be applied, under the names that are
        `shown`. Return how far each table is with them, for `registered` after the commit."""
        ends: dict[TableName, Lsn] = {}
        rows = []
        for entry, path in zip(entries, shown, strict=True):
            before = ends.get(entry.table) or self.last(connection, entry.table).end
            end = max(entry.end, Lsn(before.value + 1))
            ends[entry.table] = end
            rows.append(
                (
                    str(entry.table),
                    entry.batch,
                    path,
                    entry.type,
                    str(entry.start),
                    str(end),
                    entry.rows,
                    entry.has_ddl,
                    entry.file.size,
                    entry.file.sha256,
                )
            )
        if self.enabled and rows:
            with connection.cursor() as cursor:
                cursor.executemany(
                    self.sql(
                        """
                        insert into {schema}.file_log (table_name, batch_timestamp, file_path, file_type,
                            start_lsn, end_lsn, row_count, has_ddl, file_size_bytes, sha256)
                        values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                        """
                    ),
                    rows,
                )
        return ends

    def registered(self, ends: dict[TableName, Lsn]) -> None:
        """Call after commit: remember the new end positions."""
        for table, end in ends.items():
            if table in self._last:
                self._last[table] = Last(end, self._last[table].batch)

    def without_files(self, connection: Connection, folders: Sequence[str]) -> list[str]:
        """Return those of the folders of which no file is registered; none where files are not registered."""
        if not self.enabled:
            return []
        rows = connection.execute(
            self.sql(
                """
                select folder from unnest(%s::text[]) folder
                where not exists (
                    select from {schema}.file_log where starts_with(file_path, folder || '/'))
                """
            ),
            (list(folders),),
        ).fetchall()
        return [folder for (folder,) in rows]

    # The state of tables

    def state(
        self, connection: Connection, table: TableSchema, mode: str, streamed: Lsn | None = None
    ) -> None:
        if self.enabled:
            connection.execute(
                self.sql(
                    """
                    insert into {schema}.table_state as t
                        (table_name, table_id, current_mode, last_streaming_lsn, pipeline, destination)
                    values (%s, %s, %s, %s, %s, %s)
                    on conflict (table_name) do update set current_mode = excluded.current_mode,
                        table_id = excluded.table_id,
                        last_streaming_lsn = coalesce(excluded.last_streaming_lsn, t.last_streaming_lsn),
                        updated_at = now()
                    """
                ),
                (
                    str(table.name),
                    table.id,
                    mode,
                    str(streamed) if streamed else None,
                    self.pipeline,
                    self.destination,
                ),
            )

    def reloading(self, connection: Connection, table: TableSchema) -> None:
        """Record that the table is being copied, under the name that it has now."""
        self.state(connection, table, "reloading")
        if self.enabled:
            connection.execute(
                self.sql("delete from {schema}.table_state where table_id = %s and table_name <> %s"),
                (table.id, str(table.name)),
            )

    def expect(self, connection: Connection, tables: Mapping[TableId, TableName]) -> None:
        """Record tables that are to be copied; one that is being reloaded already stays so."""
        if self.enabled:
            with connection.cursor() as cursor:
                cursor.executemany(
                    self.sql(
                        """
                        insert into {schema}.table_state as t
                            (table_name, table_id, current_mode, pipeline, destination)
                        values (%s, %s, 'pending_reload', %s, %s)
                        on conflict (table_name) do update set current_mode = excluded.current_mode,
                            table_id = excluded.table_id, updated_at = now()
                        where t.current_mode <> 'reloading' or t.table_id <> excluded.table_id
                        """
                    ),
                    [(str(name), id, self.pipeline, self.destination) for id, name in tables.items()],
                )

    def stop(self, connection: Connection, table: TableId) -> None:
        """Record that the table does not stream any more."""
        if self.enabled:
            connection.execute(
                self.sql(
                    "update {schema}.table_state set current_mode = 'stopped', updated_at = now()"
                    " where table_id = %s and current_mode = 'streaming'"
                ),
                (table,),
            )

    def complete(self, connection: Connection, through: datetime | None) -> None:
        """Record that every table that streams has all that committed until then."""
        if self.enabled and through is not None:
            connection.execute(
                self.sql(
                    "update {schema}.table_state set complete_through = %s, updated_at = now()"
                    " where current_mode = 'streaming' and complete_through is distinct from %s"
                ),
                (through, through),
            )

    def forget(self, connection: Connection, table: TableId) -> None:
        if self.enabled:
            connection.execute(self.sql("delete from {schema}.table_state where table_id = %s"), (table,))

    def erase(self, connection: Connection) -> None:
        """Forget the tables; what is known of files stays, as they do."""
        self.create(connection)
        if self.enabled:
            connection.execute(self.sql("delete from {schema}.table_state"))
            connection.execute(self.sql("delete from {schema}.reload_operations"))

    # Old files

    def expire(self, connection: Connection, days: float) -> None:
        """Take files older than that out of the registry, unless a consumer has still to read them."""
        connection.execute(
            self.sql(
                """
                with old as (
                    delete from {schema}.file_log f
                    where created_at < now() - make_interval(secs => %s)
                      and not exists (select from {schema}.consumers c
                                      where c.table_name = f.table_name and c.last_lsn < f.end_lsn)
                    returning file_path
                )
                insert into {schema}.removals select file_path from old on conflict do nothing
                """
            ),
            (days * 86400,),
        )

    def to_be_removed(self, connection: Connection) -> list[str]:
        """Return the files that left the registry, and may still be there."""
        rows = connection.execute(self.sql("select file_path from {schema}.removals")).fetchall()
        return [path for (path,) in rows]

    def removed(self, connection: Connection, paths: Sequence[str]) -> None:
        connection.execute(
            self.sql("delete from {schema}.removals where file_path = any(%s)"), (list(paths),)
        )

    def sql(self, statement: str) -> bytes:
        """Return the statement with the schema's name in it, which is plain: the configuration takes no
        other."""
        return statement.replace("{schema}", self.schema).encode()

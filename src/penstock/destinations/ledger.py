"""What a destination itself remembers: the schema `penstock` in a database of its own, or, of files, in the
source's.

A stream's position is written in the transaction that writes its data, so the two never disagree, whatever is
killed when. The transaction begins by locking the stream's row: of two that would write the same batch at the
same time (a retried task whose first attempt still lives) the second waits, and then finds nothing to do.

A table stands where its stream stands (position null), unless it was stopped: then it has a position, and the
reason, of its own.

What is written next begins where the last ended. If what is recorded is behind that, the database is not what
it was: nothing is written to it then (`refuse_if_behind`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from penstock.destinations.protocol import Delivery, Recorded
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import DestinationWentBack, PenstockError, from_dict, to_dict
from penstock.postgres import ownership
from penstock.postgres.connection import Connection

_NAMES = ("streams", "tables", "copies", "copied", "locks", "progress")

_TABLES: LiteralString = """
create table if not exists penstock.streams (
    pipeline         text        not null,
    destination      text        not null,
    source           text        not null,
    position         pg_lsn,
    complete_through timestamptz,
    updated_at       timestamptz not null default now(),
    primary key (pipeline, destination, source)
);

create table if not exists penstock.tables (
    pipeline         text        not null,
    destination      text        not null,
    source           text        not null,
    table_id         bigint      not null,
    source_table     text        not null,
    target           text        not null,
    copy             text        not null default '',
    schema_version   integer     not null,
    made             boolean     not null default false,
    position         pg_lsn,
    complete_through timestamptz,
    error            jsonb,
    updated_at       timestamptz not null default now(),
    primary key (pipeline, destination, source, table_id)
);

create table if not exists penstock.copies (
    copy        text        primary key,
    pipeline    text        not null,
    destination text        not null,
    source      text        not null,
    table_id    bigint      not null,
    set_aside   text        not null,
    delivery    jsonb       not null,
    empty       boolean     not null,
    begun_at    timestamptz not null default now(),
    finished_at timestamptz
);

create table if not exists penstock.copied (
    copy text    not null,
    part integer not null,
    rows bigint  not null,
    primary key (copy, part)
);

create table if not exists penstock.locks (
    name text primary key
);

create or replace view penstock.progress as
    select t.pipeline, t.destination, t.source, t.source_table, t.target,
           coalesce(t.position, s.position) as position,
           case when t.position is null then s.complete_through else t.complete_through end
               as complete_through,
           greatest(t.updated_at, case when t.position is null then s.updated_at end) as updated_at
    from penstock.tables t
    left join penstock.streams s using (pipeline, destination, source);
"""


@dataclass(frozen=True, slots=True)
class StreamId:
    """Which stream arrives: the name under which the destination remembers it."""

    pipeline: str
    destination: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pipeline, self.destination, self.source


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded of a table."""

    copy: str
    version: int
    position: Lsn | None
    error: PenstockError | None
    made: bool
    """By us: then it is ours to alter."""


def create(connection: Connection) -> None:
    """Make what is missing; refuse what is somebody else's."""
    found = connection.execute("select to_regclass('penstock.locks') is not null").fetchone()
    if found != (True,):
        ownership.make_schema(connection, "penstock")
    ownership.check(connection, "penstock", _NAMES)
    if found != (True,):
        connection.execute(_TABLES)


def lock(connection: Connection, stream: StreamId) -> Lsn | None:
    """Where the stream stands. Nobody else moves it before this transaction has ended."""
    for _ in range(2):
        row = connection.execute(
            """
            select position::text from penstock.streams
            where (pipeline, destination, source) = (%s, %s, %s) for update
            """,
            stream.key,
        ).fetchone()
        if row is not None:
            return _lsn(row[0])
        connection.execute(
            "insert into penstock.streams (pipeline, destination, source) values (%s, %s, %s)"
            " on conflict do nothing",
            stream.key,
        )
    return None


def lock_table(connection: Connection, stream: StreamId, table: TableId) -> None:
    """Nobody else writes the table for this stream before this transaction has ended. A row of our own says
    so: an advisory lock is anybody's to hold."""
    _lock(connection, "/".join((*stream.key, str(table))))


def lock_target(connection: Connection, target: TableName) -> None:
    """Nobody else makes a copy visible there before this transaction has ended."""
    _lock(connection, f"target {target}")


def _lock(connection: Connection, name: str) -> None:
    connection.execute("insert into penstock.locks values (%s) on conflict do nothing", (name,))
    connection.execute("select from penstock.locks where name = %s for update", (name,))


def position(connection: Connection, stream: StreamId) -> Lsn | None:
    row = connection.execute(
        """
        select position::text from penstock.streams
        where (pipeline, destination, source) = (%s, %s, %s)
        """,
        stream.key,
    ).fetchone()
    return _lsn(row[0]) if row else None


def refuse_if_behind(stands: Lsn | None, start: Lsn) -> None:
    """Raise if what begins at `start` would leave a gap: all up to there had been recorded once."""
    if stands is None or stands < start:
        where = f"stands at {stands}" if stands is not None else "has no position"
        raise DestinationWentBack(f"the destination {where}, and had come to {start} before")


def move(connection: Connection, stream: StreamId, to: Lsn, complete_through: datetime | None) -> None:
    """The stream stands further on, and with it every table that came as far without an error."""
    connection.execute(
        """
        update penstock.streams
        set position = %s, complete_through = coalesce(%s, complete_through), updated_at = now()
        where (pipeline, destination, source) = (%s, %s, %s)
        """,
        (str(to), complete_through, *stream.key),
    )
    connection.execute(
        """
        update penstock.tables set position = null, complete_through = null
        where (pipeline, destination, source) = (%s, %s, %s) and position <= %s and error is null
        """,
        (*stream.key, str(to)),
    )


def known(connection: Connection, stream: StreamId, only: TableId | None = None) -> dict[TableId, Known]:
    """By table; `only` one where no other is asked for: there may be thousands."""
    rows = connection.execute(
        """
        select table_id, copy, schema_version, position::text, error, made from penstock.tables
        where (pipeline, destination, source) = (%s, %s, %s) and (%s::bigint is null or table_id = %s)
        """,
        (*stream.key, only, only),
    )
    return {
        TableId(id): Known(copy, version, _lsn(at), from_dict(error) if error else None, made)
        for id, copy, version, at, error, made in rows
    }


def names(connection: Connection, stream: StreamId) -> dict[TableId, str]:
    """What the tables are called at the source."""
    rows = connection.execute(
        """
        select table_id, source_table from penstock.tables
        where (pipeline, destination, source) = (%s, %s, %s)
        """,
        stream.key,
    )
    return {TableId(id): name for id, name in rows}


def recorded(connection: Connection, stream: StreamId) -> Mapping[TableId, Recorded]:
    found = known(connection, stream)
    return {
        id: Recorded(table.copy, table.version, table.position, table.error) for id, table in found.items()
    }


def record(connection: Connection, stream: StreamId, delivery: Delivery, table: Known) -> None:
    """What became of a table. One that was stopped is complete as far as the stream was."""
    connection.execute(
        """
        insert into penstock.tables as t
            (pipeline, destination, source, table_id, source_table, target, copy, schema_version, made,
             position, error, complete_through)
        select pipeline, destination, source, %(id)s, %(name)s, %(target)s, %(copy)s, %(version)s, %(made)s,
               %(position)s::pg_lsn, %(error)s::jsonb,
               case when %(position)s::text is not null then complete_through end
        from penstock.streams
        where (pipeline, destination, source) = (%(pipeline)s, %(destination)s, %(source)s)
        on conflict (pipeline, destination, source, table_id) do update set
            source_table = excluded.source_table, target = excluded.target, copy = excluded.copy,
            schema_version = excluded.schema_version, made = excluded.made, position = excluded.position,
            error = excluded.error, updated_at = now(),
            complete_through = case when excluded.position is null then null
                                    else coalesce(t.complete_through, excluded.complete_through) end
        """,
        {
            "pipeline": stream.pipeline,
            "destination": stream.destination,
            "source": stream.source,
            "id": delivery.id,
            "name": str(delivery.table.name),
            "target": str(delivery.target),
            "copy": table.copy,
            "version": table.version,
            "made": table.made,
            "position": str(table.position) if table.position is not None else None,
            "error": _document(table.error),
        },
    )


def is_done(known: Known | None, stands: Lsn | None, copy: str | None, version: int, position: Lsn) -> bool:
    """Whether an earlier attempt handed this copy over, or (None) caught the table up, and its answer was
    lost."""
    if known is None:
        return False
    if copy is not None:
        return known.copy == copy
    at = stood(known, stands)
    return known.error is None and known.version == version and at is not None and at >= position


def stood(known: Known | None, stands: Lsn | None) -> Lsn | None:
    """Where a table stands that is caught up; None if nothing is known of it."""
    if known is None:
        return None
    return known.position or stands


def hold(connection: Connection, stream: StreamId, table: TableId, position: Lsn, why: PenstockError) -> None:
    """The table stands at this position from now on; one that stopped before stays where it is."""
    connection.execute(
        """
        update penstock.tables t set position = %s, error = %s, complete_through = s.complete_through
        from penstock.streams s
        where (t.pipeline, t.destination, t.source, t.table_id) = (%s, %s, %s, %s) and t.error is null
          and (s.pipeline, s.destination, s.source) = (t.pipeline, t.destination, t.source)
        """,
        (str(position), _document(why), *stream.key, table),
    )


def forget(connection: Connection, stream: StreamId, table: TableId) -> None:
    connection.execute(
        """
        delete from penstock.tables
        where (pipeline, destination, source, table_id) = (%s, %s, %s, %s)
        """,
        (*stream.key, table),
    )


def erase(connection: Connection, stream: StreamId) -> None:
    """Forget a stream and its tables."""
    connection.execute(
        "delete from penstock.tables where (pipeline, destination, source) = (%s, %s, %s)", stream.key
    )
    connection.execute(
        "delete from penstock.streams where (pipeline, destination, source) = (%s, %s, %s)", stream.key
    )


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text is not None else None


def _document(error: PenstockError | None) -> str | None:
    """jsonb has no NUL, and a reason may quote anything."""
    return json.dumps(to_dict(error)).replace("\\u0000", "") if error else None

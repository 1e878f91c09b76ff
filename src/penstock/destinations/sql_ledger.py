"""The ledger in PostgreSQL: the schema `penstock` in a destination's own database, or, of files, in the
source's."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, LiteralString

from penstock import __version__
from penstock.destinations.ledger import Known, StreamId
from penstock.destinations.protocol import Delivery
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import LedgerNewer, PenstockError, from_dict, to_dict
from penstock.model.formats import Steps, carry_out, refusal
from penstock.postgres import ownership
from penstock.postgres.connection import Connection

FORMAT = 1
"""Of these tables, and of the registry beside them. Before it was recorded it was 1."""
STEPS: Steps = {}
_NAMES = ("streams", "tables", "copies", "copied", "locks", "progress", "ledger_format")

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

create table if not exists penstock.ledger_format (
    only_row   boolean primary key default true check (only_row),
    format     integer not null,
    written_by text    not null
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


def create(connection: Connection) -> None:
    """Make what is missing; refuse what is somebody else's."""
    row = connection.execute("select to_regclass('penstock.locks') is not null").fetchone()
    if row != (True,):
        ownership.make_schema(connection, "penstock")
    ownership.check(connection, "penstock", _NAMES)
    if row != (True,):
        connection.execute(_TABLES)
        _record_format(connection)
    else:
        _bring_up_to_date(connection)


def _bring_up_to_date(connection: Connection) -> None:
    """Carry out what brings the tables up to date. Raises `LedgerNewer` for what a later version wrote."""
    stored, written_by = _stored_format(connection)
    if stored == FORMAT:
        return
    connection.execute("lock table penstock.locks in access exclusive mode")  # one at a time
    stored, written_by = _stored_format(connection)
    if carry_out(STEPS, stored, lambda step: connection.execute(step.encode())) != FORMAT:
        raise LedgerNewer(**refusal("the schema penstock", stored, FORMAT, written_by))
    _record_format(connection)


def _stored_format(connection: Connection) -> tuple[int, str | None]:
    row = connection.execute("select to_regclass('penstock.ledger_format') is not null").fetchone()
    if row != (True,):
        return 1, None
    row = connection.execute("select format, written_by from penstock.ledger_format").fetchone()
    return (row[0], row[1]) if row else (1, None)


def _record_format(connection: Connection) -> None:
    connection.execute(
        """
        insert into penstock.ledger_format (format, written_by) values (%s, %s)
        on conflict (only_row) do update set format = excluded.format, written_by = excluded.written_by
        """,
        (FORMAT, __version__),
    )


class SqlLedger:
    """A `Ledger`."""

    def __init__(self, connection: Connection, stream: StreamId) -> None:
        self._connection = connection
        self._stream = stream

    def lock(self) -> Lsn | None:
        for _ in range(2):
            row = self._connection.execute(
                """
                select position::text from penstock.streams
                where (pipeline, destination, source) = (%s, %s, %s) for update
                """,
                self._stream.key,
            ).fetchone()
            if row is not None:
                return _lsn(row[0])
            self._connection.execute(
                "insert into penstock.streams (pipeline, destination, source) values (%s, %s, %s)"
                " on conflict do nothing",
                self._stream.key,
            )
        return None

    def position(self) -> Lsn | None:
        row = self._connection.execute(
            """
            select position::text from penstock.streams
            where (pipeline, destination, source) = (%s, %s, %s)
            """,
            self._stream.key,
        ).fetchone()
        return _lsn(row[0]) if row else None

    def move(self, to: Lsn, complete_through: datetime | None) -> None:
        self._connection.execute(
            """
            update penstock.streams
            set position = %s, complete_through = coalesce(%s, complete_through), updated_at = now()
            where (pipeline, destination, source) = (%s, %s, %s)
            """,
            (str(to), complete_through, *self._stream.key),
        )
        self._connection.execute(
            """
            update penstock.tables set position = null, complete_through = null
            where (pipeline, destination, source) = (%s, %s, %s) and position <= %s and error is null
            """,
            (*self._stream.key, str(to)),
        )

    def known(self, only: TableId | None = None) -> dict[TableId, Known]:
        rows = self._connection.execute(
            """
            select table_id, copy, schema_version, position::text, error, made from penstock.tables
            where (pipeline, destination, source) = (%s, %s, %s) and (%s::bigint is null or table_id = %s)
            """,
            (*self._stream.key, only, only),
        )
        return {
            TableId(id): Known(copy, version, _lsn(at), from_dict(error) if error else None, made)
            for id, copy, version, at, error, made in rows
        }

    def names(self) -> dict[TableId, str]:
        rows = self._connection.execute(
            """
            select table_id, source_table from penstock.tables
            where (pipeline, destination, source) = (%s, %s, %s)
            """,
            self._stream.key,
        )
        return {TableId(id): name for id, name in rows}

    def record(self, delivery: Delivery, table: Known) -> None:
        self._connection.execute(
            """
            insert into penstock.tables as t
                (pipeline, destination, source, table_id, source_table, target, copy, schema_version, made,
                 position, error, complete_through)
            select pipeline, destination, source, %(id)s, %(name)s, %(target)s, %(copy)s, %(version)s,
                   %(made)s, %(position)s::pg_lsn, %(error)s::jsonb,
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
                "pipeline": self._stream.pipeline,
                "destination": self._stream.destination,
                "source": self._stream.source,
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

    def lock_table(self, table: TableId) -> None:
        _lock(self._connection, "/".join((*self._stream.key, str(table))))

    def hold(self, table: TableId, position: Lsn, why: PenstockError) -> None:
        self._connection.execute(
            """
            update penstock.tables t set position = %s, error = %s, complete_through = s.complete_through
            from penstock.streams s
            where (t.pipeline, t.destination, t.source, t.table_id) = (%s, %s, %s, %s) and t.error is null
              and (s.pipeline, s.destination, s.source) = (t.pipeline, t.destination, t.source)
            """,
            (str(position), _document(why), *self._stream.key, table),
        )

    def forget(self, table: TableId) -> None:
        self._connection.execute(
            """
            delete from penstock.tables
            where (pipeline, destination, source, table_id) = (%s, %s, %s, %s)
            """,
            (*self._stream.key, table),
        )

    def erase(self) -> None:
        self._connection.execute(
            "delete from penstock.tables where (pipeline, destination, source) = (%s, %s, %s)",
            self._stream.key,
        )
        self._connection.execute(
            "delete from penstock.streams where (pipeline, destination, source) = (%s, %s, %s)",
            self._stream.key,
        )


def lock_target(connection: Connection, target: TableName) -> None:
    """Let nobody else make a copy visible there before this transaction has ended."""
    _lock(connection, f"target {target}")


def _lock(connection: Connection, name: str) -> None:
    connection.execute("insert into penstock.locks values (%s) on conflict do nothing", (name,))
    connection.execute("select from penstock.locks where name = %s for update", (name,))


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text is not None else None


def _document(error: PenstockError | None) -> str | None:
    """Return the error as JSON without NULs, which jsonb refuses: a reason may quote anything."""
    return json.dumps(_without_nul(to_dict(error))) if error else None


def _without_nul(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nul(value) if isinstance(value, dict) else str(value).replace("\0", "")
        for key, value in document.items()
    }

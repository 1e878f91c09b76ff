"""Every version of every row: `history`.

A version is open (it ends 9999-01-01) until the row changes: then it ends at the time of that commit, and the
next one begins. `kvsz_deleted` is true for one that no other followed.

    1. what PostgreSQL did not send is taken from the version that is open;
    2. open versions of rows that changed are closed;
    3. the new versions are added, those that ended within the batch already closed.

Changes come here in whole transactions; one that is too large for that comes in pieces
(`large_transaction.py`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.versions import Truncated, Versions
from penstock.destinations.postgres.session import is_to_be_found
from penstock.destinations.postgres.table.target_table import DELETED, END, OPEN, START, TargetTable, comma
from penstock.destinations.postgres.write.clone import EXTRA, KEPT, KIND, as_arrays, keep
from penstock.destinations.postgres.write.merge import origin, value, was
from penstock.destinations.postgres.write.refused_row import Try, first_refused, refused
from penstock.destinations.postgres.write.staging import Stage, Values, copy_in
from penstock.model.errors import RowRefused
from penstock.postgres.connection import Connection

AT, UNTIL, GONE = sql.Identifier("at"), sql.Identifier("until"), sql.Identifier("gone")

TIMES = (
    *EXTRA,
    sql.SQL("null::timestamptz as at"),
    sql.SQL("null::timestamptz as until"),
    sql.SQL("null::boolean as gone"),
)


def apply(connection: Connection, target: TargetTable, step: Versions | Truncated) -> int:
    """Apply a step; return how many versions were written or closed. A refused row's error has its key."""
    if isinstance(step, Truncated):
        return close_all(connection, target, step.at)
    try:
        with connection.transaction():
            return _apply(connection, target, step)
    except psycopg.Error as error:
        if not is_to_be_found(error, target):
            raise

        def attempt(first: int, end: int) -> None:
            _apply(connection, target, part_of(step, first, end))

        raise row_refused(connection, target, step, error, attempt) from None


def row_refused(
    connection: Connection, target: TargetTable, step: Versions, error: psycopg.Error, attempt: Try
) -> RowRefused:
    number, cause = -1, None
    if step.rows.num_rows:
        number, cause = first_refused(connection, step.rows.num_rows, attempt)
    keys = step.rows.select([step.rows.column_names.index(name) for name in target.key])
    values = [column[number].as_py() for column in keys.columns] if number >= 0 else []
    return refused(target, cause or error, target.key[: len(values)], values)


def part_of(step: Versions, first: int, end: int) -> Versions:
    """Return some of the new versions, nothing closed."""
    length = end - first
    return replace(
        step,
        rows=step.rows.slice(first, length),
        at=step.at.slice(first, length),
        until=step.until.slice(first, length),
        deleted=step.deleted.slice(first, length),
        kept=step.kept.slice(first, length),
        origin=step.origin.slice(first, length),
        closed=step.closed.slice(0, 0),
    )


def _apply(connection: Connection, target: TargetTable, step: Versions) -> int:
    kept = bool(len(step.kept.flatten()))
    if kept or step.closed.num_rows:
        with Stage(connection, target, TIMES) as stage:
            if kept:
                stage.add(staged(step))
                keep(stage, is_open())
            if step.closed.num_rows:
                stage.add(ended(step.closed))
                close(stage)
            if kept:
                insert(stage)
    if not kept and step.rows.num_rows:
        _copy(connection, target, step)
    return int(step.rows.num_rows + step.closed.num_rows)


def staged(step: Versions) -> list[tuple[sql.Composable, Values]]:
    columns: list[tuple[sql.Composable, Values]] = [
        (value(number), column) for number, column in enumerate(step.rows.columns)
    ]
    columns += [(origin(number), column) for number, column in enumerate(step.origin.columns)]
    columns += [(KIND, pa.repeat("V", step.rows.num_rows)), (KEPT, as_arrays(step.kept))]
    return [*columns, *zip((AT, UNTIL, GONE), _times(step), strict=True)]


def ended(closed: pa.Table) -> list[tuple[sql.Composable, Values]]:
    *keys, at, deleted = closed.columns
    columns: list[tuple[sql.Composable, Values]] = [(origin(number), key) for number, key in enumerate(keys)]
    columns.append((KIND, pa.repeat("D", closed.num_rows)))
    return [*columns, (AT, at.cast(pa.string())), (GONE, deleted.cast(pa.string()))]


def _times(step: Versions) -> tuple[Values, Values, Values]:
    """Return from when, until when, and whether deleted, as text."""
    until = pc.fill_null(step.until.cast(pa.string()), OPEN)
    return step.at.cast(pa.string()), until, step.deleted.cast(pa.string())


def close(stage: Stage) -> int:
    """Close versions; return how many ended."""
    target = stage.target
    return stage.connection.execute(
        sql.SQL(
            "update {} t set {} = s.at, {} = s.gone from {} s where s.kind = 'D' and {} and {} and {}"
        ).format(
            target.identifier,
            sql.Identifier(END),
            sql.Identifier(DELETED),
            stage.identifier,
            was(target),
            is_open(),
            target.own("t"),
        )
    ).rowcount


def close_all(connection: Connection, target: TargetTable, at: datetime) -> int:
    return connection.execute(
        sql.SQL("update {} t set {} = {}, {} = true where {} and {}").format(
            target.identifier,
            sql.Identifier(END),
            sql.Literal(at),
            sql.Identifier(DELETED),
            is_open(),
            target.own("t"),
        )
    ).rowcount


def insert(stage: Stage, rows: sql.Composable | None = None) -> int:
    """Add versions, all that are staged, or of these rows; return how many."""
    target = stage.target
    columns, values = target.insert()
    columns += [sql.Identifier(name) for name in (*target.written, START, END, DELETED)]
    values += [sql.SQL("s.{}").format(value(target.columns.index(name))) for name in target.written]
    values += [sql.SQL("s.{}").format(name) for name in (AT, UNTIL, GONE)]
    return stage.connection.execute(
        sql.SQL("insert into {} ({}) overriding system value select {} from {} s where kind = 'V'").format(
            target.identifier, comma(columns), comma(values), rows or stage.identifier
        )
    ).rowcount


def _copy(connection: Connection, target: TargetTable, step: Versions) -> None:
    added, _ = target.insert()
    constants = [pa.repeat(target.delivery.source, step.rows.num_rows) for _ in added]
    columns = [*added, *(sql.Identifier(name) for name in (*target.written, START, END, DELETED))]
    values = [step.rows.column(target.columns.index(name)) for name in target.written]
    copy_in(connection, target.identifier, columns, [*constants, *values, *_times(step)])


def is_open() -> sql.Composable:
    return sql.SQL("t.{} = {}").format(sql.Identifier(END), sql.Literal(OPEN))

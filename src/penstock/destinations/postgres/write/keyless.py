"""Changes of a table without key: a row is found by all its values, and may be there several times.

Values are compared as text, so that any type will do (json and point have no equality of their own), NULLs
and all. The text of a whole row is what rows are joined by: a hash join, one scan of the table for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.row_counts import Tally
from penstock.destinations.postgres.session import is_to_be_found
from penstock.destinations.postgres.table.target_table import TargetTable, comma
from penstock.destinations.postgres.write.clone import copy_rows, empty
from penstock.destinations.postgres.write.merge import inserted, value
from penstock.destinations.postgres.write.refused_row import first_refused, refused
from penstock.destinations.postgres.write.staging import Stage
from penstock.postgres.connection import Connection

COUNT = sql.Identifier("count")

EXTRA = (sql.SQL("null::bigint as count"),)


def apply(connection: Connection, target: TargetTable, tally: Tally) -> int:
    """Apply the tally; return how many rows were written or deleted. A refused row's error has its values."""
    try:
        with connection.transaction():
            return _apply(connection, target, tally)
    except psycopg.Error as error:
        if not is_to_be_found(error, target) or not tally.rows.num_rows:
            raise

        def attempt(first: int, end: int) -> None:
            _apply(connection, target, Tally(False, tally.rows.slice(first, end - first)))

        number, cause = first_refused(connection, tally.rows.num_rows, attempt)
        values = [column[number].as_py() for column in tally.rows.columns[:-1]]
        raise refused(target, cause or error, target.columns, values) from None


def _apply(connection: Connection, target: TargetTable, tally: Tally) -> int:
    if tally.truncated:
        empty(connection, target)
    counts, values = tally.rows.columns[-1], tally.rows.columns[:-1]
    if len(counts) and pc.all(pc.equal(counts, 1)).as_py():
        copy_rows(connection, target, values)
    elif len(counts):
        with Stage(connection, target, EXTRA) as stage:
            stage.add(
                [
                    *((value(number), column) for number, column in enumerate(values)),
                    (COUNT, counts.cast(pa.string())),
                ]
            )
            _delete(stage)
            _insert(stage)
    return int(pc.sum(pc.abs(counts)).as_py() or 0)


def _delete(stage: Stage) -> None:
    """Delete as many of equal rows as are to go, whichever they are."""
    target = stage.target
    staged = [sql.SQL("s.{}").format(value(target.columns.index(name))) for name in target.written]
    there = [sql.SQL("t.{}").format(sql.Identifier(name)) for name in target.written]
    stage.connection.execute(
        sql.SQL(
            """
            delete from {target} t
            using (
                select t.tableoid as part, t.ctid as at, s.less,
                       row_number() over (partition by s.whole) as nth
                from {target} t
                join (select {staged} as whole, -count as less from {stage} s where count < 0) s
                    on {there} = s.whole
                where {own}
            ) found
            where t.tableoid = found.part and t.ctid = found.at and found.nth <= found.less
            """
        ).format(
            target=target.identifier,
            stage=stage.identifier,
            staged=as_text(staged),
            there=as_text(there),
            own=target.own("t"),
        )
    )


def as_text(values: Sequence[sql.Composable]) -> sql.Composable:
    """Return a whole row as one text; NULL and the empty string differ in it."""
    return sql.SQL("row({})::text").format(comma(sql.SQL("{}::text").format(each) for each in values))


def _insert(stage: Stage) -> None:
    target = stage.target
    columns, values = inserted(target)
    stage.connection.execute(
        sql.SQL(
            """
            insert into {} ({}) overriding system value
            select {} from {} s, generate_series(1, s.count) where s.count > 0
            """
        ).format(target.identifier, comma(columns), comma(values), stage.identifier)
    )

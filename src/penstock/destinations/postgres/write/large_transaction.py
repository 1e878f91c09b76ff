"""A transaction that is too large to be held in memory, for a table of the kind `history`.

What happens inside a transaction is no version of a row: nothing is written before its end is seen. Until
then it is gathered piece by piece in a staging table, as what the pieces so far come to:

    V   rows that are there, and were changed or added;
    D   keys whose version was open before the transaction, and ends with it.

    1. What PostgreSQL did not send is taken from the row as it is here, or from the version that is open.
    2. A row that a later piece touches is here no more; what it became is another one, or nothing.
    3. At the end versions are closed, as deleted where no row has their key, and rows are added.

Keys are told apart by their text, as `changes/versions.py` does: so it comes to the same as the whole at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.versions import Truncated, Versions
from penstock.destinations.postgres.session import is_to_be_found
from penstock.destinations.postgres.table.target_table import TargetTable, both, comma
from penstock.destinations.postgres.write import history
from penstock.destinations.postgres.write.clone import keep
from penstock.destinations.postgres.write.merge import value
from penstock.destinations.postgres.write.refused_row import first_refused, refused
from penstock.destinations.postgres.write.staging import Stage, Values
from penstock.model.errors import RowRefused
from penstock.postgres.connection import Connection

KEY, ORIGIN = sql.Identifier("key"), sql.Identifier("origin")
_LAYOUT = (
    *history.TIMES,
    sql.SQL("""null::text collate "C" as key"""),
    sql.SQL("""null::text collate "C" as origin"""),
)


@dataclass(slots=True)
class LargeTransaction:
    """What has come of it: in the staging table, which is there from its first piece to its end."""

    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    transaction: LargeTransaction
    step: Versions | Truncated | None
    """None: the transaction ends."""


def apply(connection: Connection, target: TargetTable, piece: Piece) -> int:
    """Apply a piece; return how many versions were written or closed. A refused row's error has its key."""
    stage = piece.transaction.stage
    if stage is None:
        stage = piece.transaction.stage = _begin(connection, target)
    if piece.step is None:
        piece.transaction.stage = None
        return _end(stage)
    if isinstance(piece.step, Truncated):
        connection.execute(sql.SQL("truncate {}").format(stage.identifier))
        return history.close_all(connection, target, piece.step.at)
    _gather(stage, piece.step)
    return 0


def _begin(connection: Connection, target: TargetTable) -> Stage:
    stage = Stage(connection, target, _LAYOUT)
    stage.make()
    connection.execute(sql.SQL("create index on {} using hash (key)").format(stage.identifier))
    return stage


def _gather(stage: Stage, step: Versions) -> None:
    connection = stage.connection
    try:
        with connection.transaction():
            if len(step.kept.flatten()) or step.closed.num_rows:
                _merge(stage, step)
            else:
                stage.add(_staged(stage.target, step))
    except psycopg.Error as error:
        if not is_to_be_found(error, stage.target):
            raise

        def attempt(first: int, end: int) -> None:
            with Stage(connection, stage.target, _LAYOUT) as alone:
                alone.add(_staged(stage.target, history.part_of(step, first, end)))

        raise history.row_refused(connection, stage.target, step, error, attempt) from None


def _merge(stage: Stage, step: Versions) -> None:
    with Stage(stage.connection, stage.target, _LAYOUT) as piece:
        if step.rows.num_rows:
            piece.add(_staged(stage.target, step))
        if len(step.kept.flatten()):
            _keep(piece, stage)
        if step.closed.num_rows:
            piece.add([*history.ended(step.closed), (KEY, _texts(step.closed, stage.target.key))])
            _remove(piece, stage)
        stage.connection.execute(
            sql.SQL("insert into {} select * from {} where kind <> 'X'").format(
                stage.identifier, piece.identifier
            )
        )


def _staged(target: TargetTable, step: Versions) -> list[tuple[sql.Composable, Values]]:
    keys = (KEY, _texts(step.rows, target.key)), (ORIGIN, _texts(step.origin, target.key))
    return [*history.staged(step), *keys]


def _texts(rows: pa.Table, key: Sequence[str]) -> Values:
    """Return keys as one text each. A value comes with its length: no two keys have the same."""
    columns = [rows.column(name) for name in key]
    parts = [part for column in columns for part in (pc.binary_length(column).cast(pa.string()), column)]
    return pc.binary_join_element_wise(*parts, ":")


def _keep(piece: Stage, stage: Stage) -> None:
    """Fill in what PostgreSQL did not send."""
    values = [
        sql.SQL("{0} = case when {1} = any (s.kept) then t.{0} else s.{0} end").format(
            value(number), sql.Literal(number)
        )
        for number in range(len(stage.target.columns))
    ]
    stage.connection.execute(
        sql.SQL(
            "update {} s set found = true, {} from {} t"
            " where s.kept is not null and t.key = s.origin and t.kind = 'V'"
        ).format(piece.identifier, comma(values), stage.identifier)
    )
    keep(piece, both([history.is_open(), sql.SQL("s.found is null")]))


def _remove(piece: Stage, stage: Stage) -> None:
    """Remove the keys that the piece ends: of rows here, or of versions from before the transaction."""
    matches = sql.SQL("t.key = s.key and t.kind = 'V'")
    stage.connection.execute(
        sql.SQL("update {} s set kind = 'X' from {} t where s.kind = 'D' and {}").format(
            piece.identifier, stage.identifier, matches
        )
    )
    stage.connection.execute(
        sql.SQL("delete from {} t using {} s where s.kind = 'X' and {}").format(
            stage.identifier, piece.identifier, matches
        )
    )


def _end(stage: Stage) -> int:
    connection = stage.connection
    connection.execute(
        sql.SQL(
            """
            update {0} s set gone = not s.gone
            where s.kind = 'D' and s.gone = exists (select from {0} t where t.key = s.key and t.kind = 'V')
            """
        ).format(stage.identifier)
    )
    try:
        with connection.transaction():
            written = history.close(stage) + history.insert(stage)
    except psycopg.Error as error:
        if not is_to_be_found(error, stage.target):
            raise
        raise _refused(stage, error) from None
    stage.drop()
    return written


def _refused(stage: Stage, error: psycopg.Error) -> RowRefused:
    target, connection = stage.target, stage.connection
    with suppress(psycopg.Error), connection.transaction():
        history.close(stage)

    def numbered(first: int, end: int) -> sql.Composed:
        return sql.SQL(
            """
            (select * from (select *, row_number() over () as number from {} where kind = 'V') staged
             where number > {} and number <= {})
            """
        ).format(stage.identifier, sql.Literal(first), sql.Literal(end))

    def attempt(first: int, end: int) -> None:
        history.insert(stage, numbered(first, end))

    [(count,)] = connection.execute(
        sql.SQL("select count(*) from {} where kind = 'V'").format(stage.identifier)
    ).fetchall()
    if not count:
        return refused(target, error, (), ())
    number, alone = first_refused(connection, count, attempt)
    columns = [sql.SQL("s.{}::text").format(value(target.columns.index(name))) for name in target.key]
    [values] = connection.execute(
        sql.SQL("select {} from {} s").format(comma(columns), numbered(number, number + 1))
    ).fetchall()
    return refused(target, alone or error, target.key, values)

"""The rows of a finished copy, put in the place of those that a table has already.

Readers see the old rows until the transaction ends: that is why they are deleted and the table not truncated.
What `append` and `history` promise to keep is kept: rows that are gone at the source, and old versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import psycopg
from psycopg import sql

from penstock.destinations.postgres.table import definition
from penstock.destinations.postgres.table.follow_schema import align
from penstock.destinations.postgres.table.references import refuse_if_referenced
from penstock.destinations.postgres.table.target_table import (
    DELETED,
    END,
    OPEN,
    START,
    TargetTable,
    both,
    comma,
    names,
)
from penstock.destinations.postgres.write.keyless import as_text
from penstock.model.errors import RowsReferenced, TargetUnfit
from penstock.postgres.connection import Connection, without_values


def replace_rows(connection: Connection, aside: TargetTable, target: TargetTable, begun: datetime) -> None:
    """Put the rows of `aside` into `target`. `begun`: when the copy was begun."""
    if target.history:
        align(connection, target)
        _new_versions(connection, aside, definition.with_traits(connection, target), begun)
    elif target.append:
        align(connection, target)
        _upsert(connection, aside, definition.with_traits(connection, target))
    elif target.referenced:
        _exchange(connection, aside, target)
    else:
        connection.execute(sql.SQL("delete from {} t where {}").format(target.identifier, target.own("t")))
        align(connection, target)
        _insert(connection, aside, definition.with_traits(connection, target), sql.SQL("true"))


def _exchange(connection: Connection, aside: TargetTable, target: TargetTable) -> None:
    try:
        with connection.transaction():
            add_rows(connection, aside, target)
            _delete_others(connection, aside, target)
    except psycopg.errors.UniqueViolation:  # a new row needs the room of one that is gone
        _delete_others(connection, aside, target)
        add_rows(connection, aside, target)


def add_rows(connection: Connection, aside: TargetTable, target: TargetTable) -> None:
    """Bring rows, where they are, to what they are in `aside`: others may reference them."""
    if not target.key:
        raise TargetUnfit(
            "other tables at the destination reference it, and its rows have no key by which those that stay "
            "are found",
            target=target.name,
            remedy="Give the table a primary key at the source, drop the foreign keys at the destination, or "
            "run as a superuser: grant set on parameter session_replication_role to …",
        )
    align(connection, target)
    _upsert(connection, aside, definition.with_traits(connection, target))


def _delete_others(connection: Connection, aside: TargetTable, target: TargetTable) -> None:
    gone = sql.SQL("{} and not exists (select from {} a where {})").format(
        target.own("t"), aside.identifier, _same_key(target)
    )
    if target.cascades:
        refuse_if_referenced(connection, target, gone, by_ours=True)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("delete from {} t where {}").format(target.identifier, gone))
    except psycopg.errors.ForeignKeyViolation as error:
        raise RowsReferenced(without_values(error), target=target.name) from None


def _insert(
    connection: Connection, aside: TargetTable, target: TargetTable, condition: sql.Composable
) -> None:
    columns = [*definition.defaults(target), *target.written]
    connection.execute(
        sql.SQL("insert into {} ({}) overriding system value select {} from {} a where {}").format(
            target.identifier, names(columns), _of("a", columns), aside.identifier, condition
        )
    )


def _upsert(connection: Connection, aside: TargetTable, target: TargetTable) -> None:
    """Update rows that are there, add the others; without a key, add those that are not there yet."""
    if not target.key:
        present = sql.SQL("exists (select from {} t where {} and {} = {})").format(
            target.identifier, target.own("t"), _text("t", target), _text("a", target)
        )
        _insert(connection, aside, target, sql.SQL("not {}").format(present))
        return
    others = [name for name in target.written if name not in target.key]
    if others:
        changes = comma(sql.SQL("{0} = a.{0}").format(sql.Identifier(name)) for name in others)
        connection.execute(
            sql.SQL("update {} t set {} from {} a where {} and {}").format(
                target.identifier, changes, aside.identifier, _same_key(target), target.own("t")
            )
        )
    _insert(connection, aside, target, sql.SQL("not {}").format(_there(target)))


def _new_versions(connection: Connection, aside: TargetTable, target: TargetTable, begun: datetime) -> None:
    """Write versions of what changed unseen, as of when the copy was begun."""
    there = connection.execute(
        sql.SQL("select exists (select from {} t where {})").format(target.identifier, target.own("t"))
    ).fetchone()
    is_open = sql.SQL("t.{} = {}").format(sql.Identifier(END), sql.Literal(OPEN))
    copied = sql.SQL("exists (select from {} a where {})").format(aside.identifier, _same_key(target))
    equal = sql.SQL("exists (select from {} a where {} and {} = {})").format(
        aside.identifier, _same_key(target), _text("t", target), _text("a", target)
    )
    connection.execute(
        sql.SQL("update {} t set {} = greatest({}, t.{}), {} = not {} where {} and {} and not {}").format(
            target.identifier,
            sql.Identifier(END),
            sql.Literal(begun),
            sql.Identifier(START),
            sql.Identifier(DELETED),
            copied,
            target.own("t"),
            is_open,
            equal,
        )
    )
    if there is not None and there[0]:
        connection.execute(
            sql.SQL("update {} set {} = {}").format(
                aside.identifier, sql.Identifier(START), sql.Literal(begun)
            )
        )
    _insert(connection, aside, target, sql.SQL("not {}").format(_there(target, is_open)))


def _there(target: TargetTable, condition: sql.Composable | None = None) -> sql.Composable:
    """That the target has the row of `a`, by its key."""
    return sql.SQL("exists (select from {} t where {} and {} and {})").format(
        target.identifier, _same_key(target), target.own("t"), condition or sql.SQL("true")
    )


def _same_key(target: TargetTable) -> sql.Composable:
    return both(
        sql.SQL("t.{0} {1} a.{0}").format(sql.Identifier(name), target.equals(name)) for name in target.key
    )


def _text(alias: str, target: TargetTable) -> sql.Composable:
    return as_text(
        [sql.SQL("{}.{}").format(sql.Identifier(alias), sql.Identifier(n)) for n in target.written]
    )


def _of(alias: str, columns: Iterable[str]) -> sql.Composable:
    return comma(sql.SQL("{}.{}").format(sql.Identifier(alias), sql.Identifier(name)) for name in columns)

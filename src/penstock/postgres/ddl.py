"""Schema changes as rows: an event trigger writes every DDL command into `penstock.ddl_history`.

The stream itself has no DDL; that table is published, so its rows come in the stream at the commands' own
places. Comments on tables are among them, and with them the markers of reloads; what a comment was before a
marker took its place is kept in `penstock.comments`. How all this is made safe is in `recorder.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg
from psycopg import sql

from penstock.model import TableId
from penstock.model.errors import NotReady, TableBusy
from penstock.postgres import recorder
from penstock.postgres.connection import Connection, explain


def install(connection: Connection, prefix: str, *, rehearsal: bool = False) -> bool:
    """Install what is missing or of an earlier version; a rehearsal rolls it back. Return False if
    the role may not. Raises `NotReady` where something of a name that we need is somebody else's."""
    try:
        if recorder.is_current(connection, prefix):
            return True
        with connection.transaction(force_rollback=rehearsal):
            connection.execute(recorder.script(prefix).encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable):
        raise TableBusy("another pipeline installs the event triggers at this moment") from None
    except psycopg.Error as error:
        if error.sqlstate == recorder.REFUSED:
            raise NotReady(
                f"schema changes cannot be recorded: {error.diag.message_primary}",
                remedy=error.diag.message_hint or "",
            ) from None
        raise explain(error) from None
    return True


def is_installed(connection: Connection) -> bool:
    return recorder.is_installed(connection)


def denied() -> NotReady:
    return NotReady(
        "the role may not create event triggers",
        remedy="Have a superuser run what `penstock grant` prints, or set ddl_capture: auto, which does "
        "without where it has to",
    )


def remove(connection: Connection) -> bool:
    """Take the triggers away, if there are any, nobody publishes the history any more, and the role may; the
    history itself stays."""
    used = connection.execute(
        "select from pg_publication_tables where (schemaname, tablename) = ('penstock', 'ddl_history')"
    ).fetchone()
    if used is not None or not is_installed(connection):
        return False
    try:
        recorder.remove(connection)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def marked(
    connection: Connection, prefix: str, tables: Collection[TableId]
) -> list[tuple[TableId, str | None]]:
    """Return those of the tables whose comment is a marker now, with the comment that they had before."""
    rows = connection.execute(
        """
        select c.oid::bigint, s.comment
        from pg_description d
        join pg_class c on c.oid = d.objoid and c.relkind in ('r', 'p')
        left join penstock.comments s on s.table_id = c.oid
        where d.classoid = 'pg_class'::regclass and d.objsubid = 0 and starts_with(d.description, %s)
          and c.oid = any (%s)
        """,
        (prefix, list(tables)),
    ).fetchall()
    return [(TableId(id), comment) for id, comment in rows]


def set_comment(connection: Connection, table: TableId, text: str | None) -> bool:
    """Put a comment on a table; False if it is not the role's to do, or if there is no such table."""
    try:
        while name := _name(connection, table):
            with connection.transaction():
                if _comment(connection, name, text) and _name(connection, table) == name:
                    return True
                raise psycopg.Rollback
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error as error:
        raise explain(error).at(table=table) from None
    return False


def _name(connection: Connection, table: TableId) -> tuple[str, str] | None:
    return connection.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = %s",
        (table,),
    ).fetchone()


def _comment(connection: Connection, name: tuple[str, str], text: str | None) -> bool:
    """False if the table has another name by now, which may be a view's. If it was given to another table,
    the caller sees that: the lock that this takes keeps it from being renamed once more."""
    statement = sql.SQL("comment on table {} is {}").format(sql.Identifier(*name), sql.Literal(text))
    try:
        connection.execute(statement)
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.WrongObjectType,
    ):
        return False
    return True

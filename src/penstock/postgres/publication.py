"""The publication: made for the configured tables and kept in step with them.

Penstock alters only what it made. It remembers that in the publication itself, as its comment, which
survives dumps, upgrades and the loss of our state. A publication without that comment, or of another owner,
belongs to somebody else, and is used as it is; so is one for all tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from penstock.model import TableId, TableName
from penstock.model.errors import AccessDenied, PublicationMissing
from penstock.postgres.connection import Connection, explain
from penstock.postgres.ownership import is_trusted

MARK = "managed by penstock"

_REMEDY = (
    "A publication needs CREATE on the database and ownership of its tables: grant them, "
    "or let their owner make the publication and set create_publication: false; "
    "`penstock grant` prints the SQL for both"
)


@dataclass(frozen=True, slots=True)
class Publication:
    name: str
    all_tables: bool
    via_partition_root: bool
    ours: bool
    """Whether Penstock made it and may alter it."""
    generated_columns: bool
    """Whether it publishes stored generated columns (18 and later)."""
    actions: frozenset[str]
    """Of insert, update, delete, truncate: those that it publishes."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None


def describe(connection: Connection, name: str) -> Publication | None:
    row = connection.execute(
        sql.SQL(
            """
        select pubname, puballtables, pubviaroot,
               coalesce(obj_description(oid, 'pg_publication') = %s, false) and {},
               coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false),
               array_remove(array[
                   case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
                   case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null)
        from pg_publication p
        where pubname = %s
        """
        ).format(is_trusted(sql.SQL("pubowner"))),
        (MARK, name),
    ).fetchone()
    return Publication(row[0], row[1], row[2], row[3], row[4], frozenset(row[5])) if row else None


def tables(
    connection: Connection, name: str, only: Collection[TableId] | None = None
) -> list[PublishedTable]:
    """What the publication publishes, in effect: schemas, partitions and column lists settled; all of it, or
    those tables that are asked for."""
    rows = connection.execute(
        # Before 15 there are neither column lists nor row filters, and the view does not have the columns.
        """
        select p.published ->> 'schemaname', p.published ->> 'tablename',
               coalesce(
                   (select array_agg(c) from jsonb_array_elements_text(
                       nullif(p.published -> 'attnames', 'null')) c),
                   (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
                    where a.attnum > 0 and not a.attisdropped and a.attrelid = format('%%I.%%I',
                        p.published ->> 'schemaname', p.published ->> 'tablename')::regclass)),
               p.published ->> 'rowfilter'
        from (select to_jsonb(t) as published from pg_publication_tables t
              where t.pubname = %(name)s and (%(only)s::oid[] is null or (t.schemaname, t.tablename) in
                    (select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where c.oid = any (%(only)s)))) p
        order by 1, 2
        """,
        {"name": name, "only": None if only is None else list(only)},
    )
    return [PublishedTable(TableName(row[0], row[1]), tuple(row[2] or ()), row[3]) for row in rows]


def ensure(
    connection: Connection,
    name: str,
    tables: Iterable[TableName],
    *,
    create: bool,
    via_partition_root: bool = True,
) -> list[str]:
    """Make the publication, or bring its tables in step; what was done, in sentences."""
    wanted = set(tables)
    existing = describe(connection, name)
    if existing is None and not create:
        raise PublicationMissing("the publication does not exist", publication=name)
    if not create:
        return []
    if existing is not None and not existing.ours:
        return [f"publication {name} is used as it is: Penstock did not make it"]
    if existing is not None and existing.all_tables:
        return [f"publication {name} is used as it is: it is for all tables"]
    try:
        with connection.transaction():
            if existing is None:
                return _create(connection, name, wanted, via_partition_root)
            return _adjust(connection, name, wanted)
    except psycopg.Error as error:
        explained = explain(error)
        if isinstance(explained, AccessDenied):
            explained = AccessDenied(explained.reason, remedy=_REMEDY)
        raise explained.at(publication=name) from None


def drop(connection: Connection, name: str) -> bool:
    """Remove the publication if it is ours; False if it is not, or not there."""
    existing = describe(connection, name)
    if existing is None or not existing.ours:
        return False
    connection.execute(sql.SQL("drop publication {}").format(sql.Identifier(name)))
    return True


def _create(connection: Connection, name: str, wanted: set[TableName], via_partition_root: bool) -> list[str]:
    parameters = [
        sql.SQL("publish = 'insert, update, delete, truncate'"),
        sql.SQL("publish_via_partition_root = {}").format(sql.Literal(via_partition_root)),
    ]
    if connection.info.server_version >= 180000:
        parameters.append(sql.SQL("publish_generated_columns = stored"))
    publication = sql.Identifier(name)
    connection.execute(
        sql.SQL("create publication {} {} with ({})").format(
            publication,
            sql.SQL("for table {}").format(_listed(wanted)) if wanted else sql.SQL(""),
            sql.SQL(", ").join(parameters),
        )
    )
    connection.execute(sql.SQL("comment on publication {} is {}").format(publication, sql.Literal(MARK)))
    return [f"created publication {name} (tables: {len(wanted)})"]


def _adjust(connection: Connection, name: str, wanted: set[TableName]) -> list[str]:
    rows = connection.execute(
        """
        select n.nspname, c.relname
        from pg_publication_rel r
        join pg_publication p on p.oid = r.prpubid
        join pg_class c on c.oid = r.prrelid
        join pg_namespace n on n.oid = c.relnamespace
        where p.pubname = %s
        """,
        (name,),
    )
    present = {TableName(*row) for row in rows}
    done = []
    for verb, past, changed in (
        (sql.SQL("add"), "added to", wanted - present),
        (sql.SQL("drop"), "removed from", present - wanted),
    ):
        if changed:
            connection.execute(
                sql.SQL("alter publication {} {} table {}").format(
                    sql.Identifier(name), verb, _listed(changed)
                )
            )
            done.append(f"{', '.join(map(str, sorted(changed)))} {past} publication {name}")
    return done


def _listed(names: Iterable[TableName]) -> sql.Composed:
    """`only` keeps inheritance children out: they are tables of their own, chosen by their own names."""
    return sql.SQL(", ").join(
        sql.SQL("only {}").format(sql.Identifier(table.schema, table.name)) for table in sorted(names)
    )

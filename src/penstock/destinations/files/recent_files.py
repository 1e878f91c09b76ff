"""The files of a source, as its registry has them, for people and programs that look: the newest, how many
there are of each table, and which consumers have still to read some."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from psycopg import sql

from penstock.destinations.files.layout import DDL, FULL, STREAMING
from penstock.postgres.connection import Connection

NEWEST = 10
Document = dict[str, Any]


def newest(connection: Connection, schema: str) -> list[Document]:
    """Return the newest first; none where there is no registry yet."""
    if not _exists(connection, schema):
        return []
    rows = connection.execute(
        sql.SQL("""
            select table_name, file_type, file_path, row_count, file_size_bytes, created_at
            from {}.file_log order by id desc limit {}
        """).format(sql.Identifier(schema), sql.Literal(NEWEST))
    )
    return [
        {
            "table": table,
            "type": type,
            "path": path,
            "rows": count,
            "bytes": size,
            "at": _time(at),
        }
        for table, type, path, count, size, at in rows
    ]


def by_table(connection: Connection, schema: str) -> list[Document]:
    """Return how many files there are of each table and type, their size, and when the last was registered.
    Asks for the whole registry."""
    if not _exists(connection, schema):
        return []
    rows = connection.execute(
        sql.SQL("""
            select table_name, file_type, count(*), sum(file_size_bytes)::bigint, max(created_at),
                   count(*) filter (where has_ddl)
            from {}.file_log group by table_name, file_type order by table_name, file_type
        """).format(sql.Identifier(schema))
    )
    return [
        {
            "table": table,
            "type": type,
            "files": files,
            "bytes": size,
            "last_at": _time(last),
            "folders": _folders(type, files, with_ddl),
        }
        for table, type, files, size, last, with_ddl in rows
    ]


def _folders(type: str, files: int, with_ddl: int) -> int:
    """Return how many of a table's folders these files stand for: each has a file of changes, or a copy, or
    statements, with changes or without."""
    return {STREAMING: files - with_ddl, FULL: files, DDL: files}.get(type, 0)


def unread(connection: Connection, schema: str) -> list[Document]:
    """Return since when a file waits for each consumer of the registry; None: for no table that it reads."""
    if not _exists(connection, schema):
        return []
    rows = connection.execute(
        sql.SQL("""
            select c.consumer, min(next.created_at)
            from {0}.consumers c left join lateral (
                select f.created_at from {0}.file_log f
                where f.table_name = c.table_name and f.end_lsn > c.last_lsn
                order by f.end_lsn limit 1) next on true
            group by c.consumer order by c.consumer
        """).format(sql.Identifier(schema))
    )
    return [{"consumer": name, "oldest_at": _time(oldest)} for name, oldest in rows]


def _time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="milliseconds") if at else None


def _exists(connection: Connection, schema: str) -> bool:
    asked = connection.execute("select to_regclass(format('%%I.file_log', %s::text)) is not null", (schema,))
    return asked.fetchone() == (True,)

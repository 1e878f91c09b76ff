"""The newest files of a source, and how many there are, as its registry has them: for people who look."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from psycopg import sql

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
            "at": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        }
        for table, type, path, count, size, at in rows
    ]


def total(connection: Connection, schema: str) -> Document:
    """Return how many files there are, and their size. Asks for the whole registry."""
    if not _exists(connection, schema):
        return {"count": 0, "bytes": 0}
    row = connection.execute(
        sql.SQL("select count(*), coalesce(sum(file_size_bytes), 0)::bigint from {}.file_log").format(
            sql.Identifier(schema)
        )
    ).fetchone()
    assert row is not None
    return {"count": row[0], "bytes": row[1]}


def _exists(connection: Connection, schema: str) -> bool:
    asked = connection.execute("select to_regclass(format('%%I.file_log', %s::text)) is not null", (schema,))
    return asked.fetchone() == (True,)

"""A mirror's file beside the tables of a real source."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from psycopg import sql

from penstock.destinations.nats.subjects import token
from penstock.model import ColumnType, TableName
from penstock.postgres.connection import Connection, connect
from tests.bed import Database
from tests.checker import rows_difference, text_rows
from tests.consumer.comparing import LIVE, kept

_TYPES = """
select a.attname, t.typname from pg_attribute a join pg_type t on t.oid = a.atttypid
 where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
"""


def mirror_difference(path: Path, source: Database, tables: Iterable[TableName]) -> str:
    """How the mirror differs from the source, row for row; empty where it does not."""
    if not path.exists():
        return "there is no mirror yet"
    lines = []
    with closing(sqlite3.connect(path)) as mirror, connect(source.dsn) as connection:
        mirror.execute("begin")  # names and rows of one moment: the mirror goes on renaming
        live = mirror.execute(LIVE)
        names = dict(live.fetchall())
        for table in tables:
            if token(table) not in names:
                lines.append(f"{table} is not there")
            elif told := _table_difference(mirror, names[token(table)], connection, table):
                lines.append(f"{table}: {told}")
    return "\n".join(lines)


def _table_difference(mirror: sqlite3.Connection, name: str, connection: Connection, table: TableName) -> str:
    quoted = sql.Identifier(table.schema, table.name).as_string(connection)
    types: dict[str, str] = dict(connection.execute(_TYPES, (quoted,)).fetchall())
    columns, rows = text_rows(connection, table)
    here = mirror.execute('select * from "{}"'.format(name.replace('"', '""')))
    found = [column[0] for column in here.description]
    if set(found) != set(columns):
        return f"columns {found} where the source has {columns}"
    places = [found.index(column) for column in columns]
    column_types = [ColumnType(0, types[column]) for column in columns]
    wanted = Counter(repr(tuple(kept(*pair) for pair in zip(row, column_types, strict=True))) for row in rows)
    there = Counter(repr(tuple(row[place] for place in places)) for row in here.fetchall())
    return rows_difference(((row,) for row in wanted.elements()), ((row,) for row in there.elements()))

"""A consumer of files: it knows the registry, and nothing else.

It follows each table by the one query that the documentation gives, and rebuilds it in a PostgreSQL database:
made from `schema.yml`, filled from the full copy by COPY, then changed line by line. A file that is not what
the registry says fails the test.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import yaml
import zstandard
from psycopg import sql

from penstock.model import TableName
from penstock.postgres.connection import connect
from tests.bed import Database

ABOUT = ["_op", "_commit_lsn", "_lsn", "_seq", "_xid", "_committed_at", "_unchanged"]

_NEW = """
select end_lsn, file_type, file_path, row_count, sha256, file_size_bytes
from cdc_registry.file_log
where table_name = %s and end_lsn > %s order by end_lsn
"""

Row = list[str | None]


class Registered(NamedTuple):
    end: str
    kind: str
    path: str
    rows: int
    sha256: str
    size: int


def unpacked(path: str) -> bytes:
    data = Path(path).read_bytes()
    if path.endswith(".gz"):
        return gzip.decompress(data)
    if path.endswith(".zst"):
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def lines(text: str) -> Iterator[Row]:
    """CSV in which nothing at all is NULL and `""` is an empty string: Python's reader tells them apart only
    if every value that is there is quoted."""
    place, row, length = 0, list[str | None](), len(text)
    while place < length:
        if text[place] == '"':
            end = place + 1
            while True:
                end = text.index('"', end)
                if text[end + 1 : end + 2] != '"':
                    break
                end += 2
            row.append(text[place + 1 : end].replace('""', '"'))
            place = end + 1
        else:
            end = place
            while end < length and text[end] not in ",\n":
                end += 1
            row.append(text[place:end] or None)
            place = end
        if text[place] == "\n":
            yield row
            row = []
            place += 1
        else:
            place += 1
            if text[place] == "\n":  # a NULL at the end of a line
                row.append(None)
                yield row
                row = []
                place += 1


class Consumer:
    def __init__(self, source: Database, into: Database, *, rewritten: bool = False) -> None:
        """`rewritten`: rows may be rewritten unseen, by `alter column … type … using`. Until the full copy
        that follows, those that are to go are not found where they have no key."""
        self._rewritten = rewritten
        self._source = source
        self._into = into
        self._last: dict[str, str] = {}
        self._keys: dict[str, list[str]] = {}
        self.seen = 0

    def run(self) -> int:
        """Take what is new; how many files that was."""
        before = self.seen
        with self._source.connect() as registry, connect(self._into.dsn) as connection:
            names = registry.execute("select distinct table_name from cdc_registry.file_log").fetchall()
            for (table,) in names:
                new = registry.execute(_NEW, (table, self._last.get(table, "0/0"))).fetchall()
                for file in map(Registered._make, new):
                    with connection.transaction():
                        self._take(connection, table, file)
                    self._last[table] = file.end
                    self.seen += 1
        return self.seen - before

    def _take(self, connection: psycopg.Connection[Any], table: str, file: Registered) -> None:
        path, rows = file.path, file.rows
        data = Path(path).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (file.sha256, file.size), path
        text = unpacked(path).decode()
        match file.kind:
            case "schema":
                self._keys[table] = make(connection, yaml.safe_load(text))
            case "full_reload":
                name = self._name(path)
                assert fill(connection, name, text) == rows, path
            case "ddl":
                connection.execute(text.encode())
            case "streaming":
                self._apply(connection, path, table, text, rows)

    def _name(self, path: str) -> sql.Identifier:
        described = yaml.safe_load((Path(path).parent / "schema.yml").read_text())["table"]
        return sql.Identifier(described["schema"], described["name"])

    def _apply(
        self, connection: psycopg.Connection[Any], path: str, table: str, text: str, rows: int
    ) -> None:
        named = TableName.parse(table)
        target = sql.Identifier(named.schema, named.name)
        header, *found = lines(text)
        columns = [name or "" for name in header[len(ABOUT) :]]
        assert header[: len(ABOUT)] == ABOUT
        assert len(found) == rows, path
        order = [(row[1], int(row[3] or 0)) for row in found]
        assert order == sorted(order), path
        key = self._keys[table]
        change = Change(connection, target, columns, key or columns, strict=bool(key) or not self._rewritten)
        for row in found:
            change.apply(row)


def make(connection: psycopg.Connection[Any], described: dict[str, Any]) -> list[str]:
    """The table that `schema.yml` describes, empty; its key."""
    schema, name = described["table"]["schema"], described["table"]["name"]
    connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(schema, name)))
    columns = []
    for column in described["columns"]:
        known = connection.execute("select to_regtype(%s)", (column["type"],)).fetchone()
        if known == (None,) and column.get("values"):
            labels = sql.SQL(", ").join(map(sql.Literal, column["values"]))
            connection.execute(sql.SQL("create type {} as enum ({})").format(sql.SQL(column["type"]), labels))
        type = sql.SQL(column["type"] if column.get("values") or known != (None,) else "text")
        columns.append(sql.SQL("{} {}").format(sql.Identifier(column["name"]), type))
    connection.execute(
        sql.SQL("create table {} ({})").format(sql.Identifier(schema, name), sql.SQL(", ").join(columns))
    )
    key: list[str] = described["metadata"]["key"]
    return key


def fill(connection: psycopg.Connection[Any], name: sql.Identifier, text: str) -> int:
    header = sql.SQL("match" if connection.info.server_version >= 150000 else "true")
    statement = sql.SQL("copy {} from stdin (format csv, header {})").format(name, header)
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            copy.write(text)
        return cursor.rowcount


@dataclass
class Change:
    """Lines, applied one by one."""

    connection: psycopg.Connection[Any]
    target: sql.Identifier
    columns: Sequence[str]
    key: Sequence[str]
    strict: bool
    """Whether every row that is to go must be there."""
    gone: tuple[Row, dict[str, str | None]] | None = None
    """What the line before deleted: the same row, if that line has the same place."""

    def apply(self, row: Row) -> None:
        values = dict(zip(self.columns, row[len(ABOUT) :], strict=True))
        place, gone, self.gone = [row[1], row[3]], self.gone, None
        unchanged = next(csv.reader([(row[6] or "{}")[1:-1].replace('\\"', '""')]), [])
        match row[0]:
            case "T":
                self.connection.execute(sql.SQL("truncate {}").format(self.target))
            case "D":
                self.gone = place, self._delete(values)
            case "I":
                self._insert(values)
            case "U":
                old = gone[1] if gone and gone[0] == place else self._delete(values)
                self._insert(values | {name: old[name] for name in unchanged})

    def _delete(self, values: dict[str, str | None]) -> dict[str, str | None]:
        found = sql.SQL(" and ").join(
            sql.SQL("{} is null").format(sql.Identifier(name))
            if values[name] is None
            else sql.SQL("concat({}) = {}").format(sql.Identifier(name), sql.Literal(values[name]))
            for name in self.key
        )
        texts = sql.SQL(", ").join(
            sql.SQL("case when num_nulls({0}) = 0 then concat({0}) end").format(sql.Identifier(name))
            for name in self.columns
        )
        old = self.connection.execute(
            sql.SQL("delete from {0} where ctid = (select ctid from {0} where {1} limit 1) returning {2}")
            .format(self.target, found, texts)
        ).fetchone()  # fmt: skip
        if old is None:
            assert not self.strict, f"there is no such row in {self.target.as_string(None)}: {values}"
            return values
        return dict(zip(self.columns, old, strict=True))

    def _insert(self, values: dict[str, str | None]) -> None:
        self.connection.execute(
            sql.SQL("insert into {} ({}) values ({})").format(
                self.target,
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(map(sql.Literal, values.values())),
            )
        )

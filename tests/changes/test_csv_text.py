"""CSV, beside what a real server writes of the same values."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock.changes import copy_text
from penstock.changes.csv_text import csv_line, csv_text
from tests.bed import Database

Row = tuple[str | None, ...]

_AWKWARD = [
    "",
    "\\.",
    "\\",
    "\\N",
    ",",
    '"',
    '""',
    "\n",
    "\r",
    "\r\n",
    " ",
    " a ",
    "\t",
    "NULL",
    "é\u2028😀",
    ".",
]
_text = st.one_of(
    st.none(),
    st.sampled_from(_AWKWARD),
    st.text(st.sampled_from(',"\n\r\\. aé日'), max_size=8),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)
_rows = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[_text] * width), max_size=30))
_name = st.text(st.sampled_from(',"\n\r\\. ab日'), min_size=1, max_size=8)

RANDOMLY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def session(database: Database) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with database.connect() as connection:
        for width in range(1, 5):
            columns = ", ".join(f"c{place} text" for place in range(width))
            connection.execute(f"create temp table t{width} (n bigserial, {columns})".encode())
        yield connection


def as_the_server_writes(session: psycopg.Connection[tuple[object, ...]], rows: list[Row]) -> bytes:
    """The rows, which all have the same number of values, by COPY."""
    width = len(rows[0]) if rows else 1
    columns = sql.SQL(", ").join(sql.Identifier(f"c{place}") for place in range(width))
    table = sql.Identifier(f"t{width}")
    session.execute(sql.SQL("truncate {}").format(table))
    with session.cursor() as cursor:
        with cursor.copy(sql.SQL("copy {} ({}) from stdin").format(table, columns)) as copy:
            for row in rows:
                copy.write_row(row)
        query = sql.SQL("copy (select {} from {} order by n) to stdout (format csv)").format(columns, table)
        with cursor.copy(query) as copy:
            return b"".join(copy)


def as_columns(rows: list[Row]) -> list[pa.StringArray]:
    width = len(rows[0]) if rows else 1
    return [pa.array([row[place] for row in rows], pa.string()) for place in range(width)]


@RANDOMLY
@given(rows=_rows, before=st.integers(0, 9))
def test_any_text_is_written_as_copy_writes_it(
    session: psycopg.Connection[tuple[object, ...]], rows: list[Row], before: int
) -> None:
    around = [pa.array([None, "x"] * before, pa.string()), pa.array(["after", None])]
    columns = [
        pa.concat_arrays([around[0], column, around[1]]).slice(2 * before, len(rows))
        for column in as_columns(rows)
    ]
    assert b"".join(csv_text(columns)) == as_the_server_writes(session, rows)


@RANDOMLY
@given(names=st.lists(_name, min_size=1, max_size=4, unique=True))
def test_a_header_is_written_as_copy_writes_it(
    session: psycopg.Connection[tuple[object, ...]], names: list[str]
) -> None:
    columns = sql.SQL(", ").join(sql.SQL("1 as {}").format(sql.Identifier(name)) for name in names)
    query = sql.SQL("copy (select {} where false) to stdout (format csv, header)").format(columns)
    with session.cursor() as cursor, cursor.copy(query) as copy:
        assert csv_line(names) == b"".join(copy)


def test_a_table_without_columns_has_a_header(session: psycopg.Connection[tuple[object, ...]]) -> None:
    with session.cursor() as cursor, cursor.copy("copy (select) to stdout (format csv, header)") as copy:
        assert b"".join(copy) == csv_line([]) + b"\n"


def test_a_value_that_looks_like_the_end_is_quoted_where_it_stands_alone() -> None:
    dot = pa.array(["\\.", "\\,", "\\"])
    assert b"".join(csv_text([dot])) == b'"\\."\n"\\,"\n\\\n'
    assert b"".join(csv_text([dot[:1], dot[:1]])) == b"\\.,\\.\n"


def test_what_lies_under_a_null_is_not_written() -> None:
    text = pa.array(["a,b", "secret", ""])
    bits = pa.py_buffer(b"\x05")
    hidden = pa.StringArray.from_buffers(3, text.buffers()[1], text.buffers()[2], bits)
    assert b"".join(csv_text([hidden])) == b'"a,b"\n\n""\n'


def test_text_comes_in_pieces_cut_between_rows(
    session: psycopg.Connection[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_text, "CHUNK", 1000)
    rows: list[Row] = [(str(n), 'a "b"' * (n * 7 % 300), None) for n in range(500)]
    pieces = [bytes(piece) for piece in csv_text(as_columns(rows))]
    assert len(pieces) > 100
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces) == as_the_server_writes(session, rows)

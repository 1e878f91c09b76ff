"""COPY text, read by a real server."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.changes import copy_text as module
from penstock.changes.copy_text import copy_text, rows_text
from tests.bed import Database

_text = st.one_of(
    st.none(),
    st.sampled_from(["", "\\N", "\\.", "\\.\n", "\\", "\t", "\r\n", "\b\f\v", "N", "é\u2028😀"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)
_row = st.tuples(_text, _text, _text)


def copied(database: Database, texts: Iterable[memoryview]) -> list[tuple[str | None, ...]]:
    """What the server has after `copy from stdin`."""
    with database.connect() as connection, connection.transaction():
        connection.execute("create table copied (n bigserial, a text, b text, c text)")
        with connection.cursor().copy("copy copied (a, b, c) from stdin") as copy:
            for text in texts:
                copy.write(text)
        found = connection.execute("select a, b, c from copied order by n").fetchall()
        connection.execute("drop table copied")
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_row, max_size=30), cut=st.integers(0, 30))
def test_any_text_arrives_as_it_is(database: Database, rows: list[tuple[str | None, ...]], cut: int) -> None:
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(3)]
    columns[1] = pa.chunked_array([columns[1][:cut], columns[1][cut:]])
    columns[2] = pa.concat_arrays([pa.array(["before"]), columns[2], pa.array(["after\\"])])[1:-1]
    assert copied(database, copy_text(columns)) == rows


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_row, max_size=30), cut=st.integers(0, 30))
def test_rows_arrive_as_they_lie_in_a_segment(
    database: Database, rows: list[tuple[str | None, ...]], cut: int
) -> None:
    after = pa.array(rows, pa.list_(pa.string()))
    batches = [pa.record_batch([part], ["after"]) for part in (after[:cut], after[cut:])]
    assert copied(database, chain.from_iterable(rows_text(batch, 3) for batch in batches)) == rows


def test_text_comes_in_pieces_cut_between_rows(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)
    rows = [(str(n), "x" * (n * 7 % 1500), None) for n in range(500)]
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(3)]
    pieces = [bytes(piece) for piece in copy_text(columns)]
    assert len(pieces) > 100
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert all(len(piece) <= 1000 or piece.count(b"\n") == 1 for piece in pieces)
    assert copied(database, map(memoryview, pieces)) == rows
    after = pa.record_batch([pa.array(rows, pa.list_(pa.string()))], ["after"])
    assert b"".join(rows_text(after, 3)) == b"".join(pieces)

"""Rows of constants and values, some of them absent, beside the same in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.encoded import TEXT, Encoding, encoded, encoded_constants
from penstock.changes.joined import Joiner, column_of
from penstock.changes.members import Member, add_list, add_map
from penstock.changes.text_columns import TextColumn
from tests.changes.encoding import decoded
from tests.changes.test_encoded import BOTH

ROWS = 7
_where = st.none() | st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.array)
_texts = st.lists(st.text(max_size=5), min_size=ROWS, max_size=ROWS)
_parts = st.one_of(
    st.tuples(st.just("constant"), st.binary(max_size=5), _where),
    st.tuples(
        st.just("values"),
        st.lists(st.binary(max_size=5), min_size=ROWS, max_size=ROWS),
        _where,
        st.binary(max_size=3),
    ),
    st.tuples(st.just("texts"), _texts),
    st.tuples(st.just("choice"), st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS), _where),
)
OPTIONS = (b"", b"one", b"another")


def _plain(part: tuple[Any, ...], row: int) -> bytes:
    match part:
        case "constant", constant, where:
            return constant if where is None or where[row] else b""
        case "values", values, where, prefix:
            return prefix + values[row] if where is None or where[row] else b""
        case "texts", texts:
            return str(texts[row]).encode()
        case "choice", numbers, where:
            return OPTIONS[numbers[row]] if where is None or where[row] else b""
    raise AssertionError


@given(parts=st.lists(_parts))
def test_parts_come_one_behind_the_other(parts: list[tuple[Any, ...]]) -> None:
    joiner = Joiner(ROWS)
    for part in parts:
        match part:
            case "constant", constant, where:
                joiner.constant(constant, where)
            case "values", values, where, prefix:
                joiner.values(column_of(values), where, prefix)
            case "texts", texts:
                joiner.texts(TextColumn.of(pa.array(["before", *texts], pa.string()).slice(1)))
            case "choice", numbers, where:
                joiner.choice(OPTIONS, np.array(numbers, np.int64), where)
    joined = joiner.joined()
    expected = [b"".join(_plain(part, row) for part in parts) for row in range(ROWS)]
    assert [joined[row] for row in range(len(joined))] == expected


def test_no_rows_are_no_bytes() -> None:
    joiner = Joiner(0)
    joiner.constant(b"a")
    joiner.values(column_of([]))
    assert len(joiner.joined().data) == 0


@BOTH
@given(drawn=st.lists(st.tuples(_texts, _where), max_size=20), where=_where)
def test_a_map_has_the_members_of_its_row(
    encoding: Encoding, drawn: list[tuple[list[str], Any]], where: Any
) -> None:
    names = [f"column {number}" for number in range(len(drawn))]
    joiner = Joiner(ROWS)
    members = [
        Member(name, encoded(pa.array(texts, pa.string()), TEXT, encoding), there)
        for name, (texts, there) in zip(encoded_constants(names, encoding), drawn, strict=True)
    ]
    add_map(joiner, encoding, members, where)
    joined = joiner.joined()
    for row in range(ROWS):
        if where is not None and not where[row]:
            assert joined[row] == b""
        else:
            there = [
                (name, texts[row])
                for name, (texts, w) in zip(names, drawn, strict=True)
                if w is None or w[row]
            ]
            assert decoded(joined[row], encoding) == dict(there)


@BOTH
@given(drawn=st.lists(_where, max_size=20), where=_where)
def test_a_list_has_the_members_of_its_row(encoding: Encoding, drawn: list[Any], where: Any) -> None:
    names = [f'column "{number}"' for number in range(len(drawn))]
    joiner = Joiner(ROWS)
    constants = encoded_constants(names, encoding)
    add_list(
        joiner, encoding, [Member(name, where=w) for name, w in zip(constants, drawn, strict=True)], where
    )
    joined = joiner.joined()
    for row in range(ROWS):
        if where is not None and not where[row]:
            assert joined[row] == b""
        else:
            there = [name for name, w in zip(names, drawn, strict=True) if w is None or w[row]]
            assert decoded(joined[row], encoding) == there

"""The names of tables as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import TableName

PARTS = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=8) | st.text(
    'a."*', min_size=1, max_size=5
)
NAMES = st.builds(TableName, PARTS, PARTS)


@given(NAMES)
def test_a_name_is_what_its_text_says(name: TableName) -> None:
    assert TableName.parse(str(name)) == name


@given(NAMES, NAMES)
def test_no_two_names_have_the_same_text(one: TableName, other: TableName) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_common_names_look_as_people_write_them() -> None:
    assert str(TableName("public", "My Table")) == "public.My Table"
    assert str(TableName("a.b", 'c"')) == '"a.b"."c"""'
    assert TableName.parse("orders") == TableName("public", "orders")
    assert TableName.parse("a.b.c") == TableName("a", "b.c")
    assert TableName.parse('"a.b"') == TableName("public", "a.b")

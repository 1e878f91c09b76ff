"""What tables are called in NATS."""

from __future__ import annotations

import re
from itertools import combinations
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.nats.subjects import change_subject, collisions, token
from penstock.model import TableName

_part = st.one_of(
    st.text(st.sampled_from("ab_.%*> 2E"), min_size=1, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
)
_schema = st.sampled_from(["public", "a", "a_b", "public_a"]) | _part
_tables = st.builds(TableName, _schema, _part)


@given(table=_tables)
def test_a_name_is_one_token_that_nats_takes_and_everybody_sees(table: TableName) -> None:
    name = token(table)
    assert name
    assert not re.search(r"[\s.*>\x00-\x20\x7f]", name)
    assert change_subject(table, "insert").split(".") == ["cdc", name, "insert"]
    whole = table.name if table.schema == "public" else f"{table.schema}_{table.name}"
    assert unquote(name, errors="strict") == whole


@given(tables=st.lists(_tables, max_size=12))
def test_tables_share_a_name_only_where_that_is_told(tables: list[TableName]) -> None:
    groups = collisions(tables)
    for one, other in combinations(set(tables), 2):
        together = any(one in group and other in group for group in groups)
        assert together == (token(one) == token(other))


def test_names_as_they_are_documented() -> None:
    assert token(TableName("public", "users")) == "users"
    assert token(TableName("shop", "orders")) == "shop_orders"
    assert token(TableName("public", "Größe in %")) == "Größe%20in%20%25"
    assert token(TableName("my.schema", "a*b>c")) == "my%2Eschema_a%2Ab%3Ec"
    assert token(TableName("public", "zero\u200bwidth\u2028")) == "zero%E2%80%8Bwidth%E2%80%A8"


def test_an_underscore_can_stand_for_two_things() -> None:
    one, other = TableName("public", "a_b"), TableName("a", "b")
    third, fourth = TableName("x_y", "z"), TableName("x", "y_z")
    assert collisions([one, third, other, TableName("public", "c"), fourth]) == [
        [other, one],
        [fourth, third],
    ]
    assert collisions([one, one, third]) == []

"""Schema changes by model: whatever is altered, and whenever batches and looks come in between, the
destination ends with the source's values under the source's names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.destinations import DestinationTable
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Column
from penstock.pipeline.changes import passes_a_rule
from tests.pipeline.evolving import TEXT, Copy, Source

PLACES = st.integers(0, 2)
WRITE = st.tuples(st.just("write"), st.sampled_from("123"))
NAMED = st.one_of(
    WRITE,
    WRITE,
    st.tuples(st.just("add"), PLACES, st.booleans()),
    st.tuples(st.just("drop"), PLACES),
    st.tuples(st.just("rename"), PLACES, PLACES),
    st.tuples(st.just("swap"), PLACES, PLACES),
    st.tuples(st.just("move_on"), PLACES),
    st.tuples(st.just("make_again"), PLACES, st.booleans()),
)
"""What becomes of names."""
REWRITTEN = st.one_of(
    st.tuples(st.just("rename_key")),
    st.tuples(st.just("retype"), PLACES),
    st.tuples(st.just("compute"), PLACES),
    st.tuples(st.just("vacuum")),
    st.tuples(st.just("set_default"), PLACES),
)


def happenings(statements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    transactions = st.lists(statements, min_size=1, max_size=3)
    transaction = st.tuples(st.just("transaction"), transactions)
    batch = st.tuples(st.just("batch"), st.sampled_from([1, 2, None]))
    others = st.one_of(
        st.tuples(st.just("look"), st.lists(transaction | st.just(("copy",)), max_size=2)),
        st.tuples(st.just("settle")),
        st.tuples(st.just("copy")),
        st.tuples(st.just("restart")),
    )
    return st.lists(st.one_of(transaction, transaction, batch, others), min_size=2, max_size=20)


def perform(source: Source, statements: list[Any]) -> None:
    for name, *arguments in statements:
        getattr(source, name)(*arguments)
    source.commit()


def happen(source: Source, copy: Copy, kind: str, *what: Any) -> None:
    match kind:
        case "transaction":
            perform(source, *what)
        case "batch":
            copy.batch(*what)
        case "look":
            copy.look(lambda: happen_all(source, copy, what[0]))
        case "settle":
            copy.settle()
        case "copy":
            copy.copy("asked for")
        case "restart":
            copy.restart()


def happen_all(source: Source, copy: Copy, happened: list[Any]) -> None:
    for each in happened:
        happen(source, copy, *each)


def catch_up(source: Source, copy: Copy) -> None:
    source.commit()
    copy.batch()
    copy.look()
    copy.settle()


def check(happened: list[Any]) -> None:
    source = Source()
    copy = Copy(source)
    happen_all(source, copy, happened)
    catch_up(source, copy)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    copies = len(copy.copies)
    catch_up(source, copy)
    assert len(copy.copies) == copies


@settings(max_examples=1000, deadline=None)
@given(happenings(NAMED))
def test_whatever_names_come_back_every_value_is_under_its_own(happened: list[Any]) -> None:
    check(happened)


@settings(max_examples=400, deadline=None)
@given(happenings(NAMED | REWRITTEN))
def test_whatever_is_altered_every_value_is_the_sources(happened: list[Any]) -> None:
    check(happened)


FOLLOWED = {
    "added": [("add", 0, False)],
    "added with a default": [("add", 0, True)],
    "dropped": [("drop", 1)],
    "renamed": [("rename", 1, 0)],
    "the key renamed": [("rename_key",)],
    "swapped": [("swap", 0, 1)],
    "swapped through a third": [("add", 0, False), ("swap", 0, 1), ("swap", 1, 2)],
    "dropped, the next has its name": [("move_on", 0)],
    "dropped, added again under its name": [("make_again", 0, True)],
    "one dropped, another added": [("drop", 0), ("add", 1, True)],
    "widened": [("retype", 1)],
}


@pytest.mark.parametrize("before", [False, True], ids=["quiet", "busy"])
@pytest.mark.parametrize("after", [False, True], ids=["by the catalog", "by a row"])
@pytest.mark.parametrize("statements", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_what_is_certain_is_followed_without_a_copy(statements: list[Any], before: bool, after: bool) -> None:
    source = Source()
    copy = Copy(source)
    for each in ([("write", "1")] if before else [], statements, [("write", "2")] if after else []):
        perform(source, each)
        copy.batch()
    catch_up(source, copy)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    assert copy.copies == ["first"]


@pytest.mark.parametrize("during", [False, True], ids=["before it", "during it"])
def test_a_look_that_began_before_a_copy_says_nothing(during: bool) -> None:
    source = Source()
    copy = Copy(source)

    def copied() -> None:
        perform(source, [("add", 0, False), ("write", "1")])
        copy.copy("asked for")

    copy.look(copied if during else lambda: None)
    if not during:
        copied()
        perform(source, [])
    copy.batch()
    copy.settle()
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()


READS_A = DestinationTable.model_validate({"set": {"c": "upper(a)"}})
FILTERS_BY_A = DestinationTable.model_validate({"where": "a = 'x'"})
HIDES_A = DestinationTable.model_validate({"drop": ["a"]})
SCHEMA = Source().schema()


@pytest.mark.parametrize("rules", [READS_A, FILTERS_BY_A], ids=["set", "where"])
@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(dropped=("a",), renamed=(("b", "a"),)),
        SchemaChange(dropped=("a",), added=((SCHEMA.columns[1], None),)),
    ],
    ids=["given to another", "made again"],
)
def test_a_name_that_a_rule_reads_and_another_column_has_is_no_step_to_follow(
    rules: DestinationTable, change: SchemaChange
) -> None:
    """What the rules made of old rows would be something else now."""
    assert passes_a_rule(rules, SCHEMA, change)
    assert not passes_a_rule(HIDES_A, SCHEMA, SchemaChange(dropped=("b",)))
    assert not passes_a_rule(rules, SCHEMA, SchemaChange(added=((Column("d", TEXT), None),)))

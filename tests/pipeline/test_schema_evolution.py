"""Schema changes by model: whatever is altered, and whenever batches and looks come in between, the
destination ends with the source's values under the source's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.destinations import DestinationTable
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Column, ColumnType, ReplicaIdentity, TableName
from penstock.pipeline import schema_evolution
from penstock.pipeline.batch_plan import passes_a_rule
from penstock.pipeline.schema_evolution import CopyAnew, Evolved
from tests.pipeline.evolving import INT, OID, REGCLASS, TEXT, VARCHAR, Copy, Source, carry_out

PLACES = st.sampled_from([0, 0, 1, 1, 2])
WRITE = st.tuples(st.just("write"), st.sampled_from("13"))
ALTERATIONS: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "add": (PLACES, st.booleans()),
    "drop": (PLACES,),
    "rename": (PLACES, PLACES),
    "swap": (PLACES, PLACES),
    "move_on": (PLACES,),
    "roll": (),
    "make_again": (PLACES, st.booleans()),
    "rename_key": (),
    "retype": (PLACES,),
    "compute": (PLACES,),
    "vacuum": (),
    "set_default": (PLACES,),
}
TYPES = (TEXT, TEXT), (TEXT, VARCHAR), (OID, REGCLASS)


@st.composite
def happenings(draw: st.DrawFn) -> list[Any]:
    """Of a few kinds each time: what goes wrong, goes wrong where the same things meet again and again."""
    kinds = draw(st.lists(st.sampled_from(sorted(ALTERATIONS)), min_size=2, max_size=3, unique=True))
    altered = st.one_of([st.tuples(st.just(kind), *ALTERATIONS[kind]) for kind in kinds])
    transaction = st.tuples(
        st.just("transaction"), st.lists(altered, max_size=2), st.lists(WRITE, max_size=2)
    )
    others = st.one_of(
        st.tuples(st.just("batch"), st.sampled_from([1, None])),
        st.tuples(st.just("look"), st.lists(transaction | st.just(("copy",)), max_size=3)),
        st.sampled_from([("copy",), ("restart",)]),
    )
    return draw(st.lists(transaction | others, min_size=1, max_size=7))


def perform(source: Source, *statements: list[Any]) -> None:
    for name, *arguments in chain.from_iterable(statements):
        getattr(source, name)(*arguments)
    source.commit()


def happen(source: Source, copy: Copy, kind: str, *what: Any) -> None:
    match kind:
        case "transaction":
            perform(source, *what)
        case "batch":
            copy.batch(*what)
            copy.settle()
        case "look":
            copy.look(lambda: happen_all(source, copy, what[0]))
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
    copy.settle()
    copy.look()
    copy.settle()


def check(types: tuple[ColumnType, ColumnType], happened: list[Any]) -> None:
    source = Source(types)
    copy = Copy(source)
    happen_all(source, copy, happened)
    catch_up(source, copy)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    copies = len(copy.copies)
    catch_up(source, copy)
    assert len(copy.copies) == copies


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TYPES), happenings())
def test_whatever_is_altered_every_value_is_under_its_name(types: Any, happened: list[Any]) -> None:
    check(types, happened)


EACH: dict[str, Any] = {
    "add": ("add", 0, True),
    "drop the first": ("drop", 0),
    "drop the last": ("drop", -1),
    "rename the first": ("rename", 0, 0),
    "swap": ("swap", 0, -1),
    "drop the first, the next has its name": ("move_on", 0),
    "roll": ("roll",),
    "make the first again": ("make_again", 0, True),
    "make the last again": ("make_again", -1, True),
    "rename the key": ("rename_key",),
    "retype the first": ("retype", 0),
    "retype the last": ("retype", -1),
    "compute the first": ("compute", 0),
    "vacuum": ("vacuum",),
}


@pytest.mark.parametrize("first", EACH.values(), ids=EACH.keys())
def test_of_any_two_changes_at_every_moment_each_value_is_under_its_name(first: Any) -> None:
    for second, *rows in product(EACH.values(), ([], [("write", "1")]), ([], [("write", "3")])):
        one, two = (("transaction", [each], row) for each, row in zip((first, second), rows, strict=True))
        retyped = "retype" in (first[0], second[0])
        for types, happened in product(TYPES if retyped else TYPES[:1], moments(one, two)):
            check(types, happened)


def moments(one: Any, two: Any) -> Iterator[list[Any]]:
    """Two transactions, with batches, looks and copies before, between and after them; what comes last
    of all is in `check`."""
    batch, copy, restart = ("batch", None), ("copy",), ("restart",)
    between: tuple[list[Any], ...] = [], [batch], [batch, restart], [("look", [])], [copy]
    after: tuple[list[Any], ...] = [], [batch, restart]
    for here, there in product(between, after):
        yield [one, *here, two, *there]
    yield [("look", [one]), two]
    yield [one, ("look", [two])]
    yield [("look", [one, two])]
    yield [("look", [one, copy, two])]
    yield [("look", [one, copy]), two]
    yield [one, ("look", [two, copy, ("transaction", [], [])])]


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
    "one added, another widened": [("add", 0, True), ("retype", 1)],
    "written to other files": [("vacuum",)],
}


@pytest.mark.parametrize("at_once", [False, True], ids=["in batches", "at once"])
@pytest.mark.parametrize("before", [False, True], ids=["quiet", "busy"])
@pytest.mark.parametrize("after", [False, True], ids=["by the catalog", "by a row"])
@pytest.mark.parametrize("statements", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_what_is_certain_is_followed_without_a_copy(
    statements: list[Any], before: bool, after: bool, at_once: bool
) -> None:
    source = Source()
    copy = Copy(source)
    perform(source, [])
    copy.batch()
    transactions = [("write", "1")] if before else [], statements, [("write", "2")] if after else []
    happened = [("transaction", each) for each in transactions]
    if at_once:
        copy.look(lambda: happen_all(source, copy, happened), late=True)
        copy.settle()  # not yet: the rows are on their way
    else:
        happen_all(source, copy, [each for one in happened for each in (one, ("batch", None))])
    catch_up(source, copy)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    assert copy.copies == ["first"]


ONE_BY_ONE = {
    "added": [[("add", 0, True)], [("add", 0, True)]],
    "renamed": [[("rename", 0, 0)], [("rename", 0, 1)], [("rename", 0, 0)]],
    "added, dropped, and another added": [[("add", 0, False)], [("drop", 2)], [("add", 1, True)]],
    "dropped after a VACUUM, another renamed": [[("vacuum",), ("drop", 1)], [("rename", 0, 0)]],
}


@pytest.mark.parametrize("changes", ONE_BY_ONE.values(), ids=ONE_BY_ONE.keys())
def test_what_is_certain_is_followed_by_one_row_after_the_other(changes: list[Any]) -> None:
    source = Source()
    copy = Copy(source)
    for each in changes:
        perform(source, each, [("write", "1")])
        copy.batch()
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    assert copy.copies == ["first"]


@pytest.mark.parametrize("changes", [ONE_BY_ONE["added"], ONE_BY_ONE["renamed"]], ids=["added", "renamed"])
def test_of_two_changes_at_the_source_the_first_is_followed_by_its_row(changes: list[Any]) -> None:
    """The catalog knows of the second when the first one's row comes."""
    source = Source()
    copy = Copy(source)
    copy.batch()
    for each in changes:
        perform(source, each, [("write", "1")])
    for _ in changes:
        copy.batch(1)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    assert copy.copies == ["first"]


def test_under_identity_full_a_table_that_loses_its_key_is_copied_anew() -> None:
    facts = Source().facts(1)
    schema = replace(facts.schema, identity=ReplicaIdentity.FULL)
    keyless = replace(facts, schema=schema, primary_key=())
    assert isinstance(schema_evolution.look(schema, facts.detail(), keyless), CopyAnew)
    assert isinstance(
        schema_evolution.look(facts.schema, facts.detail(), replace(facts, primary_key=())), Evolved
    )


def test_a_key_that_is_renamed_is_known_by_its_new_name() -> None:
    source = Source()
    copy = Copy(source)
    perform(source, [("rename_key",), ("write", "1")])
    copy.batch()
    assert copy.known["primary_key"] == ["key"]


def test_a_key_whose_column_is_gone_is_none() -> None:
    facts = Source().facts(1)
    rest = {name: number for name, number in facts.numbers.items() if name != "id"}
    schema = replace(facts.schema, columns=facts.schema.columns[1:])
    now = replace(facts, schema=schema, numbers=rest, primary_key=())
    followed = schema_evolution.follow(facts.schema, schema, facts.detail(), now)
    assert isinstance(followed, Evolved)
    assert followed.detail["primary_key"] == []


def test_a_table_that_only_has_another_name_is_followed() -> None:
    facts = Source().facts(1)
    before = replace(facts.schema, name=TableName("public", "before"))
    assert isinstance(schema_evolution.look(before, facts.detail(), facts), Evolved)
    assert schema_evolution.look(facts.schema, facts.detail(), facts) is None


def test_what_rows_have_in_a_new_column_is_certain_or_the_table_is_copied_anew() -> None:
    source = Source()
    known = source.facts(1)
    source.add(0, default=True)
    now = source.facts(1)
    differing = replace(now, missing={"c": ["x", "y"]})
    assert isinstance(schema_evolution.follow(known.schema, now.schema, known.detail(), now), Evolved)
    assert isinstance(schema_evolution.follow(known.schema, now.schema, known.detail(), differing), CopyAnew)
    assert isinstance(schema_evolution.follow(known.schema, now.schema, known.detail(), None), CopyAnew)


def varchar(length: int | None) -> ColumnType:
    return replace(VARCHAR, modifier=-1 if length is None else length + 4)


def numeric(precision: int, scale: int) -> ColumnType:
    return ColumnType(1700, "numeric", (precision << 16 | scale) + 4)


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [
        (varchar(10), varchar(20), True),
        (varchar(10), varchar(None), True),
        (varchar(10), TEXT, True),
        (varchar(20), varchar(10), False),
        (varchar(None), varchar(10), False),
        (numeric(10, 2), numeric(12, 2), True),
        (numeric(10, 2), ColumnType(1700, "numeric"), True),
        (numeric(10, 2), numeric(12, 3), False),
        (numeric(12, 2), numeric(10, 2), False),
        (ColumnType(1700, "numeric"), numeric(10, 2), False),
        (INT, ColumnType(20, "int8"), False),
    ],
)
def test_only_a_wider_type_is_followed(before: ColumnType, after: ColumnType, alike: bool) -> None:
    facts = Source((before, TEXT)).facts(1)
    now = Source((after, TEXT)).facts(1)
    evolved = schema_evolution.follow(facts.schema, now.schema, facts.detail(), now)
    assert isinstance(evolved, Evolved) == alike


def test_a_column_that_was_there_and_is_published_only_now_has_a_table_copied_anew() -> None:
    """Rows have values in it that the stream never had."""
    facts = Source().facts(1)
    *published, _ = facts.schema.columns
    numbers = {column.name: facts.numbers[column.name] for column in published}
    known = {**facts.detail(), "numbers": numbers}
    narrow = replace(facts.schema, columns=tuple(published))
    assert isinstance(schema_evolution.look(narrow, known, facts), CopyAnew)
    assert isinstance(schema_evolution.follow(narrow, facts.schema, known, facts), CopyAnew)


@pytest.mark.parametrize("changed", EACH.values(), ids=EACH.keys())
def test_a_look_that_began_before_a_copy_says_nothing(changed: Any) -> None:
    """Though it ended after it: it would have the table copied once more."""
    source = Source()
    copy = Copy(source)
    copy.batch()
    perform(source, [("set_default", 0)])
    meanwhile = [("transaction", [changed], []), ("copy",), ("transaction", [], [])]
    copy.look(lambda: happen_all(source, copy, meanwhile))
    copy.settle()
    catch_up(source, copy)
    assert [row for _, row in sorted(copy.rows.items())] == source.contents()
    assert copy.copies == ["first", "asked for"]


def test_who_steps_aside_takes_nobodys_name() -> None:
    added = Column("penstock_1", TEXT), None
    row: dict[str, str | None] = {"a": "1", "b": "2", "penstock_0": "3"}
    carry_out(SchemaChange(renamed=(("a", "b"), ("b", "a")), added=(added,)), row)
    assert row == {"a": "2", "b": "1", "penstock_0": "3", "penstock_1": None}


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

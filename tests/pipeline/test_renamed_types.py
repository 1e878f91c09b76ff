"""A type that gets another name is the same type: its rows print as before, and its tables are not copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.destinations.schema_change import SchemaChange
from penstock.model import ColumnType, TypeKind
from penstock.model.phases import Phase
from penstock.pipeline import schema_evolution
from penstock.pipeline.schema_evolution import CopyAnew, Evolved
from tests.pipeline.evolving import TEXT, Source
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed
from tests.pipeline.test_table_reloads import ask, process, state, until

MADE = {
    "enum": "create type mood as enum ('sad', 'ok')",
    "composite": "create type mood as (name text)",
    "range": "create type mood as range (subtype = int4)",
    "domain": "create domain mood as text",
}
VALUES = {"enum": "ok", "composite": "(ok)", "range": "[1,5)", "domain": "ok"}


@pytest.mark.parametrize("kind", MADE)
def test_a_table_is_not_copied_when_a_type_of_it_gets_another_name(bed: Bed, kind: str) -> None:
    one = f"'{VALUES[kind]}', array['{VALUES[kind]}']::"
    bed.source.execute(
        MADE[kind],
        "create table t (id integer primary key, m mood, several mood[])",
        f"insert into t values (1, {one}mood[])",
    )

    def is_there() -> bool:
        return contents(bed.destination, "t") == contents(bed.source, "t") and state(running).phase.streams

    with process(bed) as running:
        until(bed, running, is_there)
        bed.source.execute(f"insert into t values (2, {one}mood[])")
        until(bed, running, is_there)
    bed.source.execute("alter type mood rename to feeling")
    with process(bed) as running:
        copy = state(running).copy
        for id in (3, 4):
            bed.source.execute(f"insert into t values ({id}, {one}feeling[])")
            until(bed, running, is_there)
        assert state(running).copy == copy
        ask(running, "reload")
        until(bed, running, lambda: state(running).copy != copy and state(running).phase is Phase.READY)
        copy = state(running).copy
        for id in (5, 6):
            bed.source.execute(f"insert into t values ({id}, {one}feeling[])")
            until(bed, running, is_there)
        assert state(running).copy == copy


MOOD = ColumnType(16400, "mood", kind=TypeKind.ENUM)
TYPES = {
    "enum": MOOD,
    "array": ColumnType(16401, "_mood", kind=TypeKind.ARRAY, inner=MOOD),
    "domain": ColumnType(16402, "felt", kind=TypeKind.DOMAIN, inner=MOOD),
}
types = pytest.mark.parametrize("type", TYPES.values(), ids=TYPES.keys())


def renamed(type: ColumnType) -> ColumnType:
    return replace(type, name=f"new_{type.name}", inner=renamed(type.inner) if type.inner else None)


@types
@pytest.mark.parametrize("in_the_catalog", [False, True])
def test_a_type_is_the_same_by_its_oid(type: ColumnType, in_the_catalog: bool) -> None:
    """Rows have the name that it had once, the catalog the one of now. What else changed is followed."""
    one, other = Source((type, TEXT)), Source((renamed(type), TEXT))
    streamed, catalog = (one, other) if in_the_catalog else (other, one)
    old, detail, now = streamed.schema(), streamed.facts(1).detail(), catalog.facts(1)
    assert schema_evolution.follow(old, now.schema, detail, now) == Evolved(SchemaChange(), detail)
    assert schema_evolution.look(old, detail, now) is None
    for source in (one, other):
        source.add(0, default=False)
        source.rename(1, 0)
    added = streamed.schema().columns[-1]
    change = SchemaChange(added=((added, None),), renamed=(("b", "d"),))
    evolved = schema_evolution.follow(old, streamed.schema(), detail, catalog.facts(1))
    assert isinstance(evolved, Evolved)
    assert evolved.change == change


@types
def test_a_type_that_was_made_again_under_its_name_is_another(type: ColumnType) -> None:
    facts = Source((type, TEXT)).facts(1)
    again = replace(type, oid=17000, inner=replace(type.inner, oid=17001) if type.inner else None)
    now = replace(facts, schema=Source((again, TEXT)).schema())
    assert isinstance(schema_evolution.follow(facts.schema, now.schema, facts.detail(), now), CopyAnew)
    assert isinstance(schema_evolution.look(facts.schema, facts.detail(), now), CopyAnew)

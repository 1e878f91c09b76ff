"""Images of changes and changes of images, against the same thing done change by change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import Column, ColumnType, ReplicaIdentity, TableSchema
from penstock.model.errors import TransformRefused
from penstock.pipeline.transform.images import COMPUTED, PASSES, Imaging, whole_changes
from penstock.spool.segment import SCHEMA, BeforeKind, Op
from tests.changes.changing import (
    BY_KEY,
    FULL,
    Changing,
    Key,
    Values,
    changing,
    cuts,
    play,
    starts,
    steps,
)

NAMES = BY_KEY.column_names
PASSING = ("x", "a", "")


@dataclass(frozen=True)
class Rules:
    """A filter on one column, computed columns each from one other, columns left out."""

    where: str | None
    set: Mapping[str, str]
    drop: frozenset[str]

    def imaging(self, source: TableSchema) -> Imaging:
        read = {*self.set.values(), *([self.where] if self.where else [])}
        full = source.identity is ReplicaIdentity.FULL
        kept = [(c, p) for p, c in enumerate(source.columns) if c.name not in self.drop]
        new = [name for name in self.set if name not in NAMES]
        columns = [*(c for c, _ in kept), *(Column(name, ColumnType(25, "text"), full) for name in new)]
        taken = [*(None if c.name in self.set else p for c, p in kept), *(None for _ in new)]
        needed = tuple(p for p, name in enumerate(NAMES) if name in read)
        return Imaging(source, replace(source, version=7, columns=tuple(columns)), needed, tuple(taken))

    def passes(self, row: Mapping[str, Any]) -> bool | None:
        """As SQL has it: of null nothing is known."""
        value = row[self.where] if self.where else ""
        return None if value is None else value in PASSING

    def computed(self, name: str, row: Mapping[str, Any]) -> str | None:
        value = row[self.set[name]]
        return None if value is None else f"{value}!"


rules = st.builds(
    Rules,
    st.sampled_from([None, "area", "a"]),
    st.dictionaries(st.sampled_from(["a", "new", "newer"]), st.sampled_from(["area", "b"]), max_size=3),
    st.frozensets(st.sampled_from(["b"])),
)
schemas = st.sampled_from([BY_KEY, FULL])


def judged(imaging: Imaging, rules: Rules, images: pa.RecordBatch) -> pa.RecordBatch:
    """What Spark SQL does: of a row that does not pass it computes nothing."""
    said = []
    for row in images.to_pylist():
        real = row["_penstock_old"] or row["_penstock_op"] not in (Op.DELETE, Op.TRUNCATE)
        passes = bool(real and rules.passes(row))
        names = [c.name for c, p in zip(imaging.delivered.columns, imaging.taken, strict=True) if p is None]
        said.append((passes, [rules.computed(name, row) for name in names] if passes else None))
    computed = pa.array([made for _, made in said], pa.list_(pa.field("element", pa.string())))
    judged = images.append_column(PASSES, pa.array([passes for passes, _ in said], pa.bool_()))
    return judged.append_column(COMPUTED, computed)


def delivered(table: Changing, rules: Rules, cuts: Sequence[int], image_cuts: Sequence[int]) -> pa.Table:
    """All the way there and back, the changes cut here and the images there."""
    imaging = rules.imaging(table.schema)
    images = [imaging.images_of(batch) for batch in table.batches(cuts)]
    whole = pa.Table.from_batches(images).combine_chunks()
    bounds = [0, *sorted(cut % (len(whole) + 1) for cut in image_cuts), len(whole)]
    pieces = [
        judged(imaging, rules, piece)
        for a, b in pairwise(bounds)
        for piece in whole.slice(a, b - a).to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]
    ]
    batches = [imaging.changes(batch) for batch in whole_changes(iter(pieces))]
    return pa.Table.from_batches(batches, SCHEMA)


class OneByOne:
    """The same, a change after the other: what the column operations are held against."""

    def __init__(self, rules: Rules, source: TableSchema) -> None:
        self.rules = rules
        self.imaging = rules.imaging(source)
        self.names = self.imaging.delivered.column_names

    def change(self, change: dict[str, Any]) -> dict[str, Any] | None:
        change = change | {"schema_version": 7}
        if change["op"] == Op.TRUNCATE:
            return change
        knows = change["before_kind"] == BeforeKind.FULL
        before = self.row(change["before"]) if knows else None
        if change["op"] == Op.DELETE:
            if knows and before is None:
                return None
            return change | {"before": before or self.key(change["before"])}
        sent = list(change["after"])
        unsent = [] if knows else list(change["unchanged"] or ())
        if knows:
            for place in change["unchanged"] or ():
                sent[place] = change["before"][place]
        if set(unsent) & set(self.imaging.needed):
            raise TransformRefused("not sent")
        after = self.row(sent)
        if after is None:
            return self.left(change, before, knows, sent)
        told = [self.names.index(NAMES[p]) for p in unsent if p in self.imaging.taken]
        change |= {"after": after, "unchanged": told if unsent else None}
        if knows and before is None:
            return change | {"op": Op.INSERT, "before": None, "before_kind": BeforeKind.NONE}
        return change | {"before": before if knows else self.key(change["before"])}

    def left(
        self, change: dict[str, Any], before: Values | None, knows: bool, sent: Sequence[str | None]
    ) -> dict[str, Any] | None:
        if change["op"] == Op.INSERT or (knows and before is None):
            return None
        gone = change | {"op": Op.DELETE, "after": None, "unchanged": None}
        if knows:
            return gone | {"before": before}
        key = self.key(change["before"] if change["before"] is not None else sent)
        return gone | {"before": key, "before_kind": BeforeKind.KEY}

    def row(self, values: Sequence[str | None]) -> Values | None:
        """As it is delivered; None if it is not."""
        row = dict(zip(NAMES, values, strict=True))
        if not self.rules.passes(row):
            return None
        return tuple(
            self.rules.computed(name, row) if name in self.rules.set else row[name] for name in self.names
        )

    def key(self, values: Sequence[str | None] | None) -> Values | None:
        if values is None:
            return None
        row = dict(zip(NAMES, values, strict=True))
        return tuple(row[c.name] if c.key else None for c in self.imaging.delivered.columns)


def plain(changes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lists for tuples, numbers for names."""
    return [
        {key: list(value) if isinstance(value, tuple) else value for key, value in change.items()}
        for change in changes
    ]


@settings(max_examples=300, deadline=None)
@given(schema=schemas, rules=rules, start=starts, steps=steps, cuts=cuts, image_cuts=cuts)
def test_changes_become_what_they_become_one_by_one(
    schema: TableSchema,
    rules: Rules,
    start: dict[Key, Values],
    steps: list[tuple[Any, ...]],
    cuts: list[int],
    image_cuts: list[int],
) -> None:
    table = changing(schema, start)
    for step in steps:
        play(table, step)
    one_by_one = OneByOne(rules, schema)
    try:
        expected = [found for change in table.changes if (found := one_by_one.change(change)) is not None]
    except TransformRefused:
        with pytest.raises(TransformRefused, match="was not sent"):
            delivered(table, rules, cuts, image_cuts)
        return
    assert delivered(table, rules, cuts, image_cuts).to_pylist() == plain(expected)


@settings(max_examples=200, deadline=None)
@given(schema=schemas, rules=rules, start=starts, steps=steps)
def test_a_destination_that_applies_them_has_the_rows_that_pass(
    schema: TableSchema, rules: Rules, start: dict[Key, Values], steps: list[tuple[Any, ...]]
) -> None:
    table = changing(schema, start)
    one_by_one = OneByOne(rules, schema)

    def wanted() -> dict[Key, Values]:
        return {key: row for key, values in table.state().items() if (row := one_by_one.row(values))}

    there = wanted()
    for step in steps:
        play(table, step)
    try:
        changes = delivered(table, rules, (), ())
    except TransformRefused:
        return
    entered_unknown = False
    for change in changes.to_pylist():
        entered_unknown |= not applied(there, change)
    assert entered_unknown or there == wanted()


def applied(there: dict[Key, Values], change: Mapping[str, Any]) -> bool:
    """Apply a change by key, `id` and `area`, which stand at the places 0 and 2. False where a row comes
    in of which a value was never sent: a destination refuses it."""
    old, new = change["before"], change["after"]
    if change["op"] == Op.TRUNCATE:
        there.clear()
        return True
    origin = (old[0], old[2]) if old is not None else (new[0], new[2])
    before = there.pop(origin, None)
    if change["op"] == Op.DELETE:
        return True
    unsent = change["unchanged"] or ()
    known = before is not None or not unsent
    row = [before[p] if p in unsent and before else value for p, value in enumerate(new)]
    there[new[0], new[2]] = tuple(row)
    return known


def test_images_are_cut_between_changes_and_otherwise_left_as_they_are() -> None:
    def images(*old: bool) -> pa.RecordBatch:
        return pa.record_batch({"_penstock_old": pa.array(old, pa.bool_())})

    given = [images(), images(False), images(False), images(True), images(False, False, True, False)]
    found = [batch["_penstock_old"].to_pylist() for batch in whole_changes(iter(given))]
    assert found == [[False], [False, True], [False, False, True], [False]]

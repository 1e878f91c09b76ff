"""Net changes of a table without a key, against one that changes at random, with rows that are alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from penstock.changes.row_counts import net_rows
from penstock.model.errors import OldRowUnsent
from penstock.model.errors.base import Scope
from tests.changes.changing import BY_KEY, FULL, Key, Values, changing, cuts, play, starts, steps


def alike(rows: Any) -> Counter[Values]:
    """Rows without the columns that tell them apart: several become the same."""
    return Counter((row[1], row[3]) for row in rows)


@settings(max_examples=150, deadline=None)
@given(start=starts, steps=steps, cuts=cuts)
def test_what_is_added_and_removed_turns_what_was_there_into_what_is_there(
    start: dict[Key, Values], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    table = changing(FULL, start)
    before = alike(table.state().values())
    for step in steps:
        play(table, step)
    for change in table.changes:
        for side in ("before", "after"):
            if change[side] and len(change[side]) == 4:
                change[side] = ["0", change[side][1], None, change[side][3]]
    tally = net_rows(table.batches(cuts), FULL)
    assert tally.truncated == table.truncated
    state = Counter() if tally.truncated else before
    told = [tuple(row.values()) for row in tally.rows.to_pylist()]
    for *row, count in told:
        assert count != 0
        state[row[1], row[3]] += count
    assert state == alike(table.state().values())
    if any(count < 0 for *_, count in told):
        assert len({row[:4] for row in told}) == len(told)


def test_an_update_without_its_old_row_stops_its_table_alone() -> None:
    table = changing(BY_KEY, {("1", "x"): ("a", "b")})
    table.update(("1", "x"), ("1", "x"), ("c", "d"), set())
    with pytest.raises(OldRowUnsent, match="whole row") as refused:
        net_rows(table.batches(), BY_KEY)
    assert refused.value.scope is Scope.TABLE

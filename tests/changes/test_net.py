"""Net changes per key, against a table that changes at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from penstock.changes.net import Net, net_changes
from penstock.model import TableSchema
from penstock.model.errors import SpoolDamaged
from penstock.spool.segment import BeforeKind
from tests.changes.changing import (
    BY_KEY,
    FULL,
    KEY,
    Changing,
    Key,
    Values,
    changing,
    cuts,
    key_of,
    play,
    starts,
    steps,
)

K1, K2, K3 = ("1", "x"), ("1", "y"), ("2", "x")
A, B, C = ("a1", "b1"), ("a2", "b2"), ("a3", "b3")


def tuples(table: Any) -> list[Values]:
    return [tuple(row.values()) for row in table.to_pylist()]


def applied(net: Net, start: dict[Key, Values]) -> dict[Key, Values]:
    """What a destination makes of it, in the plainest way."""
    state = {} if net.truncated else dict(start)
    rows = []
    for row, origin, kept in zip(tuples(net.rows), tuples(net.origin), net.kept.to_pylist(), strict=True):
        old = state.get(origin)
        rows.append(tuple(old[p] if p in kept and old else value for p, value in enumerate(row)))
    for key in tuples(net.deletes):
        del state[key]
    for kind, origin in zip(net.kind.to_pylist(), tuples(net.origin), strict=True):
        if kind != ord("I"):
            state.pop(origin)
    for row in rows:
        assert key_of(row) not in state
        state[key_of(row)] = row
    return state


def told(net: Net) -> list[tuple[str, Key, Key | None, list[int]]]:
    keys = [key_of(row) for row in tuples(net.rows)]
    kinds = [chr(kind) for kind in net.kind.to_pylist()]
    origins = [
        None if kind == "I" else origin for kind, origin in zip(kinds, tuples(net.origin), strict=True)
    ]
    return list(zip(kinds, keys, origins, net.kept.to_pylist(), strict=True))


def expected(table: Changing) -> list[tuple[str, Key, Key | None, list[int]]]:
    """What `told` must be: the rows that were touched, in the order of their last change. A new row under the
    key of one that is gone is an update."""
    found = []
    for key, thing in sorted(table.things.items(), key=lambda item: item[1].touched):
        if thing.touched >= 0:
            origin = key if thing.origin is None and key in table.gone else thing.origin
            kind = "I" if origin is None else "U" if origin == key else "M"
            found.append((kind, key, origin, sorted({1, 3} - thing.sent)))
    return found


@pytest.mark.parametrize("schema", [BY_KEY, FULL], ids=["key", "full"])
@settings(max_examples=150, deadline=None)
@given(start=starts, steps=steps, cuts=cuts)
def test_the_net_change_turns_what_was_there_into_what_is_there(
    schema: TableSchema, start: dict[Key, Values], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    table = changing(schema, start)
    before = table.state()
    for step in steps:
        play(table, step)
    net = net_changes(table.batches(cuts), schema, KEY)
    assert net.truncated == table.truncated
    assert applied(net, before) == table.state()
    assert told(net) == expected(table)
    reborn = {key for key, thing in table.things.items() if thing.origin is None}
    assert sorted(tuples(net.deletes), key=str) == sorted(table.gone - reborn, key=str)


def written(net: Net, keys: set[Key]) -> set[Key]:
    """The keys that there are when it is written to a table with these, and nothing is deleted yet."""
    moved = {
        origin
        for kind, origin in zip(net.kind.to_pylist(), tuples(net.origin), strict=True)
        if kind == ord("M")
    }
    return (keys - moved) | {key_of(row) for row in tuples(net.rows)}


@settings(max_examples=150, deadline=None)
@given(start=starts, steps=steps, cuts=cuts)
def test_what_was_written_before_goes_if_it_is_gone_in_the_end(
    start: dict[Key, Values], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    table = changing(BY_KEY, start)
    before = set(table.state())
    for step in steps:
        play(table, step)
    batches = table.batches(cuts)
    for count in range(len(batches)):
        first = net_changes(batches[:count], BY_KEY, KEY, again=True) if count else None
        there = written(first, before) if first is not None else before
        net = net_changes(batches, BY_KEY, KEY, again=True)
        keys = {key_of(row) for row in tuples(net.rows)}
        left = keys if net.truncated else written(net, there) - set(tuples(net.deletes))
        assert left == set(table.state())


def told_of(table: Changing) -> list[tuple[str, Key, Key | None, list[int]]]:
    return told(net_changes(table.batches(), table.schema, KEY))


def test_rows_that_swap_their_keys_cross_their_origins() -> None:
    table = changing(BY_KEY, {K1: A, K2: B})
    table.update(K1, K3, C, {1})
    table.update(K2, K1, B, {3})
    table.update(K3, K2, A, {1, 3})
    assert told_of(table) == [("M", K1, K2, [3]), ("M", K2, K1, [1])]


def test_a_row_that_takes_a_key_whose_row_moved_away_is_new() -> None:
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K2, A, {1, 3})
    table.insert(K1, B)
    assert told_of(table) == [("M", K2, K1, [1, 3]), ("I", K1, None, [])]


def test_a_row_that_moves_and_returns_is_updated() -> None:
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K2, B, {3})
    table.update(K2, K1, B, {1, 3})
    assert told_of(table) == [("U", K1, K1, [3])]


def test_of_a_row_that_moved_and_was_deleted_the_first_key_goes() -> None:
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K2, A, set())
    table.update(K2, K3, A, set())
    table.delete(K3)
    net = net_changes(table.batches(), BY_KEY, KEY)
    assert (tuples(net.deletes), net.rows.num_rows) == ([K1], 0)


def test_a_new_row_under_a_key_whose_row_moved_and_was_deleted_takes_its_place() -> None:
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K2, A, set())
    table.insert(K1, B)
    table.delete(K2)
    net = net_changes(table.batches(), BY_KEY, KEY)
    assert (told(net), tuples(net.deletes)) == ([("U", K1, K1, [])], [])


def test_no_two_rows_come_from_one() -> None:
    """Not even where a change is of a row that cannot be there, as its key has been given up."""
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K1, A, set())
    change_of_k1 = table.changes.pop()
    table.update(K1, K2, B, set())
    table.changes.append(change_of_k1)
    assert told_of(table) == [("M", K2, K1, []), ("I", K1, None, [])]


def test_an_insert_may_lack_values_and_a_later_change_may_bring_them() -> None:
    """A row filter turns an update into an insert; what it lacks nobody has."""
    table = changing(BY_KEY, {})
    table.insert(K1, A)
    table.changes[0] |= {"after": ["1", None, "x", None], "unchanged": [1, 3]}
    assert told_of(table) == [("I", K1, None, [1, 3])]
    table.update(K1, K1, B, {3})
    assert told_of(table) == [("I", K1, None, [3])]


def test_what_an_insert_lacks_is_not_taken_from_the_row_deleted_before() -> None:
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K1, B, set())
    table.delete(K1)
    table.insert(K1, C)
    table.changes[2] |= {"after": ["1", "a3", "x", None], "unchanged": [3]}
    net = net_changes(table.batches(), BY_KEY, KEY)
    assert told(net) == [("U", K1, K1, [3])]
    assert tuples(net.rows) == [("1", "a3", "x", None)]


def test_a_key_too_large_to_be_sent_twice_is_taken_from_the_old_key() -> None:
    """PostgreSQL sends the old key, though it did not change, if it is stored out of line."""
    table = changing(BY_KEY, {K1: A})
    table.update(K1, K1, B, {3})
    table.changes[0] |= {
        "before_kind": BeforeKind.KEY,
        "before": ["1", None, "x", None],
        "after": [None, "a2", "x", None],
        "unchanged": [0, 3],
    }
    net = net_changes(table.batches(), BY_KEY, KEY)
    assert told(net) == [("U", K1, K1, [3])]
    assert tuples(net.rows) == [("1", "a2", "x", None)]


def test_a_delete_without_its_row_is_refused() -> None:
    table = changing(BY_KEY, {K1: A})
    table.delete(K1)
    table.changes[0] |= {"before": None, "before_kind": BeforeKind.NONE}
    with pytest.raises(SpoolDamaged, match="of which row"):
        net_changes(table.batches(), BY_KEY, KEY)

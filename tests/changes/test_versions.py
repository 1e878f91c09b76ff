"""Versions of rows, against the history of a table that changes at random."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from penstock.changes.versions import Truncated, Versions, versions
from penstock.model import TableSchema
from penstock.spool import segment
from tests.changes.changing import (
    BY_KEY,
    FULL,
    KEY,
    Key,
    Values,
    Version,
    changing,
    cuts,
    key_of,
    play,
    starts,
    steps,
)


class History:
    """A destination that keeps every version, in the plainest way."""

    def __init__(self, start: dict[Key, Version]) -> None:
        self.open = dict(start)
        self.past: list[Version] = []

    def apply(self, step: Versions | Truncated) -> None:
        if isinstance(step, Truncated):
            self._end([(key, step.at, True) for key in self.open])
            return
        before = dict(self.open)
        self._end([(tuple(each[:-2]), *each[-2:]) for each in _tuples(step.closed)])
        columns = zip(_tuples(step.rows), step.at, step.until, step.deleted, strict=True)
        kept = zip(step.kept.to_pylist(), _tuples(step.origin), strict=True)
        for (row, at, until, deleted), (places, origin) in zip(columns, kept, strict=True):
            for place in places:
                row = (*row[:place], before[origin].row[place], *row[place + 1 :])
            version = Version(row, at.as_py(), until.as_py(), deleted.as_py())
            if version.until is not None:
                self.past.append(version)
            else:
                assert key_of(row) not in self.open
                self.open[key_of(row)] = version

    def _end(self, ends: list[tuple[Key, Any, bool]]) -> None:
        for key, at, deleted in ends:
            self.past.append(replace(self.open.pop(key), until=at, deleted=deleted))


def _tuples(table: Any) -> list[Any]:
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("schema", [BY_KEY, FULL], ids=["key", "full"])
@settings(max_examples=150, deadline=None)
@given(start=starts, steps=steps, cuts=cuts)
def test_the_versions_are_what_readers_could_see_after_each_transaction(
    schema: TableSchema, start: dict[Key, Values], steps: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    table = changing(schema, start)
    history = History(table.open)
    for step in steps:
        play(table, step)
    table.commit()
    for each in versions(table.batches(cuts), schema, KEY):
        history.apply(each)
    assert history.open == table.open
    assert Counter(history.past) == Counter(table.past)


def test_what_a_transaction_did_before_its_last_truncate_never_showed(tmp_path: Path) -> None:
    table = changing(BY_KEY, {("1", "x"): ("a", "b")})
    table.update(("1", "x"), ("1", "x"), ("c", "d"), set())
    table.truncate()
    table.insert(("1", "y"), ("e", "f"))
    table.truncate()
    table.insert(("2", "x"), ("g", "h"))
    at = table.at
    table.commit()
    written = segment.write(tmp_path / "1", table.batches())
    changes = list(segment.read(tmp_path / written.file, written.parts[0]))
    emptied, after = versions(changes, BY_KEY, KEY)
    assert emptied == Truncated(at)
    assert isinstance(after, Versions)
    assert _tuples(after.rows) == [("2", "g", "x", "h")]
    assert after.closed.num_rows == 0

"""What the stream does not show: which differences between two looks have a table copied anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.pipeline import unseen_changes
from tests.pipeline.evolving import Source

COPIED = replace(
    Source().facts(1),
    member=frozenset({"1", "2"}),
    types={"10": "sad", "11": "23 25"},
    leaves={"20": "file 1", "21": "file 2"},
)

UNSEEN: dict[str, dict[str, Any]] = {
    "out of the publication and back": {"member": frozenset({"3"})},
    "a value renamed": {"types": {"10": "glum", "11": "23 25"}},
    "another field": {"types": {"10": "sad", "11": "23 25 16"}},
    "a partition gone": {"leaves": {"20": "file 1"}},
    "a partition truncated": {"leaves": {"20": "file 1", "21": "file 3"}},
    "a partition truncated that had been empty": {
        "leaves": {"20": "file 1", "21": "file 3"},
        "streamed": frozenset({"21"}),
    },
    "a partition attached with rows": {"leaves": {**COPIED.leaves, "22": "file 4"}},
}
NOTHING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "published twice, then once": {"member": frozenset({"2"})},
    "published by something else as well": {"member": frozenset({"2", "3"})},
    "a value added, a type gone": {"types": {"10": "sad", "12": "ok"}},
    "a partition attached empty": {
        "leaves": {**COPIED.leaves, "22": "file 4"},
        "streamed": frozenset({"22"}),
    },
}


@pytest.mark.parametrize("now", UNSEEN.values(), ids=UNSEEN.keys())
def test_what_went_unseen(now: dict[str, Any]) -> None:
    assert unseen_changes.unseen(COPIED.detail(), replace(COPIED, **now))


@pytest.mark.parametrize("now", NOTHING.values(), ids=NOTHING.keys())
def test_what_did_not(now: dict[str, Any]) -> None:
    """Nor does it later, and what came since is noticed when it goes."""
    later = replace(COPIED, **now)
    known = unseen_changes.remember(COPIED.detail(), later)
    assert unseen_changes.unseen(COPIED.detail(), later) is None
    assert unseen_changes.unseen(known, replace(later, streamed=frozenset())) is None
    assert unseen_changes.unseen(known, replace(later, member=frozenset({"9"})))
    assert unseen_changes.unseen(known, replace(later, leaves=dict.fromkeys(later.leaves, "other")))
    for leaf in later.leaves:
        assert unseen_changes.unseen(known, replace(later, leaves={leaf: later.leaves[leaf]}))
    for value in later.types:
        assert unseen_changes.unseen(known, replace(later, types={value: "other"}))
    for member in later.member:
        assert unseen_changes.unseen(known, replace(later, member=frozenset({member}))) is None

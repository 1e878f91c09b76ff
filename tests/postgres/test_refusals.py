"""What the server refused is not asked for again at once."""

from __future__ import annotations

from penstock.model import TableName
from penstock.postgres.refusals import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Refusals

A, B = TableName("public", "a"), TableName("public", "b")


def test_each_refusal_stands_for_longer() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    refusals.see({A: "as it is", B: "as it is"})
    pauses = []
    for _ in range(10):
        refusals.note(A, "no")
        assert refusals.standing() == {A: "no"}
        begun = now[0]
        while refusals.standing():
            now[0] += 1
        pauses.append(now[0] - begun)
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2, FIRST_PAUSE_SECONDS * 4]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_what_looks_otherwise_is_tried_again_at_once() -> None:
    refusals = Refusals(lambda: 0.0)
    refusals.see({A: 1, B: 1})
    refusals.note(A, "no")
    refusals.note(B, "no")
    refusals.see({A: 1, B: 2})
    assert refusals.standing() == {A: "no"}
    refusals.see({B: 2})
    assert refusals.standing() == {}

"""Whatever fails on the way, what was begun is done as it was planned, in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.unfinished_steps import Unfinished

Plan = list["int | Plan"]
"""Steps: one that plans others, by `then` and by `do`, or a number to be put down."""
PLANS: st.SearchStrategy[Plan] = st.recursive(
    st.lists(st.integers(0, 9), max_size=2), lambda inner: st.lists(st.integers(0, 9) | inner, max_size=3)
)


class Worker:
    def __init__(self, fails: list[bool]) -> None:
        self.unfinished = Unfinished()
        self.done: list[int] = []
        self._fails = iter(fails)

    def begin(self, plan: Plan) -> None:
        self.unfinished.do(*map(self._step, plan))

    def _step(self, step: int | Plan) -> Callable[[], None]:
        return partial(self._note, step) if isinstance(step, int) else partial(self._plan, step)

    def _note(self, number: int) -> None:
        self._fail()
        self.done.append(number)

    def _plan(self, steps: Plan) -> None:
        for step in steps:
            self.unfinished.then(self._step(step))
        self.unfinished.do(*map(self._step, steps))
        self._fail()

    def _fail(self) -> None:
        if next(self._fails, False):
            raise ConnectionError


@given(PLANS, PLANS, st.lists(st.booleans(), max_size=8))
def test_each_step_is_done_once_and_in_its_order(first: Plan, second: Plan, fails: list[bool]) -> None:
    worker = Worker(fails)
    for plan in (first, second):
        try:
            worker.begin(plan)
        except ConnectionError:
            finish(worker)
    assert worker.done == [*in_order(first), *in_order(second)]


def in_order(plan: Plan) -> Iterator[int]:
    steps = deque(plan)
    while steps:
        step = steps.popleft()
        if isinstance(step, int):
            yield step
        else:
            steps.extend([*step, *step])


def finish(worker: Worker) -> None:
    while True:
        try:
            worker.unfinished.finish()
        except ConnectionError:
            continue
        return


def test_what_failed_is_raised_and_stays_to_be_done() -> None:
    worker = Worker([True])
    with pytest.raises(ConnectionError):
        worker.begin([1, 2])
    assert worker.done == []
    worker.unfinished.finish()
    assert worker.done == [1, 2]

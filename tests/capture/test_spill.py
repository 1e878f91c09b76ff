from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.runs import Block, MessageRun
from penstock.capture.spill import Spill, SpilledRun

# A transaction as nested savepoints write it: a block of messages of some (sub)transaction, or the
# roll-back of one. Subtransaction numbers grow, as PostgreSQL's do.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, 3), min_size=1, max_size=6)),
        st.tuples(st.just("roll_back"), st.integers(0, 5)),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_what_is_left_is_what_was_not_rolled_back(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spill = Spill(Path(folder) / "spill")
        expected: list[tuple[int, bytes]] = []
        current, number = 100, 0
        for kind, what in steps:
            if kind == "write":
                messages, xids = [], []
                for deeper in what:  # type: ignore[attr-defined]
                    current += deeper
                    number += 1
                    messages.append(b"m%d" % number)
                    xids.append(current)
                spill.keep(Block(100, MessageRun.of(messages), np.array(xids, np.int64)))
                expected += zip(xids, messages, strict=True)
            else:
                seen = sorted({xid for xid, _ in expected if xid != 100})
                if seen and isinstance(what, int):
                    gone = seen[what % len(seen)]
                    spill.roll_back(100, gone)
                    first = next(place for place, (xid, _) in enumerate(expected) if xid == gone)
                    del expected[first:]
                current += 1
        left = [
            run.data[start:end]
            for run in map(SpilledRun.read, spill.runs(100))
            for start, end in zip([0, *run.ends[:-1]], run.ends, strict=True)
        ]
        assert left == [message for _, message in expected]


def test_a_transaction_rolled_back_whole_leaves_nothing(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "spill")
    spill.keep(Block(7, MessageRun.of([b"a", b"b"]), np.array([7, 8], np.int64)))
    spill.roll_back(7, 7)
    assert list(spill.runs(7)) == []
    assert list((tmp_path / "spill").iterdir()) == []

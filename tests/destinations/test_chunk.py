"""Transactions stay whole, or come in pieces that say so."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.destinations.postgres.write.chunk import whole_transactions

TRANSACTIONS = st.lists(st.integers(1, 12), max_size=8)
"""How many rows each has."""


@given(TRANSACTIONS, st.lists(st.integers(1, 40), max_size=8), st.integers(1, 6))
def test_pieces_are_of_one_transaction_and_all_else_is_of_whole_ones(
    sizes: list[int], cuts: list[int], most: int
) -> None:
    commits = [commit for commit, size in enumerate(sizes) for _ in range(size)]
    places = [0, *sorted(cut for cut in set(cuts) if cut < len(commits)), len(commits)]
    batches = [
        pa.record_batch({"commit_lsn": pa.array(commits[begin:end], pa.int64())})
        for begin, end in pairwise(places)
        if begin < end
    ]
    chunks = list(whole_transactions(batches, most, 1 << 30))
    rows = [[row for batch in chunk.rows for row in batch["commit_lsn"].to_pylist()] for chunk in chunks]
    assert [row for chunk in rows for row in chunk] == commits

    at_hand: int | None = None
    for chunk, held in zip(chunks, rows, strict=True):
        if not chunk.is_piece:
            assert at_hand is None, "a transaction in pieces ends before the next one"
            assert all(held.count(commit) == sizes[commit] for commit in held)
            assert not chunk.is_last
        else:
            assert set(held) <= ({held[0]} if at_hand is None else {at_hand})
            assert len(held) < 2 * most
            at_hand = None if chunk.is_last else held[0] if at_hand is None else at_hand
    assert at_hand is None

"""Messages that are cut and put together, as those of several tables and of atomic groups are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.changes.text_columns import bytes_of
from penstock.destinations.nats.messages import Messages, Place, in_order, joined

SUBJECTS = (b"cdc.a.insert", b"cdc.a.update")


def numbered(subjects: tuple[bytes, ...], numbers: list[int]) -> Messages:
    """Messages whose text, id and place are their numbers."""
    texts = [f"message {number}" for number in numbers]
    ends = np.cumsum([len(text) for text in texts])
    return Messages(
        bytes_of("".join(texts).encode()),
        np.array([0, *ends[:-1]], np.int64),
        ends,
        subjects,
        np.array([number % 2 for number in numbers], np.int64),
        pa.array([f"id {number}" for number in numbers]),
        np.array(numbers, np.int64) // 10,
        np.array(numbers, np.int64) % 10,
    )


def told(messages: Messages) -> list[tuple[bytes, bytes, str, Place]]:
    return [
        (
            messages.payload[messages.starts[n] : messages.ends[n]].tobytes(),
            messages.subjects[messages.subject_numbers[n]],
            messages.ids[n].as_py(),
            Place(int(messages.commit_lsns[n]), int(messages.ranks[n])),
        )
        for n in range(len(messages))
    ]


def expected(numbers: range) -> list[tuple[bytes, bytes, str, Place]]:
    return [(f"message {n}".encode(), SUBJECTS[n % 2], f"id {n}", Place(n // 10, n % 10)) for n in numbers]


def test_what_is_left_of_one_part_and_joined_with_the_next_does_not_grow() -> None:
    held = numbered(SUBJECTS, [0])
    for first, end in pairwise(range(1, 1000, 9)):
        held = joined([held, numbered(SUBJECTS, [*range(first, end)])]).slice(9)

        assert told(held) == expected(range(end - 1, end))

    assert held.subjects == SUBJECTS
    assert len(held.payload) < 200


def test_the_messages_of_several_tables_come_in_the_order_of_their_places_with_their_own_subjects() -> None:
    other = SUBJECTS[::-1]
    parts = [
        iter([numbered(SUBJECTS, [0, 2, 30]), numbered(SUBJECTS, [34])]),
        iter([numbered((*SUBJECTS, b"cdc.a.delete"), [4, 11, 33])]),
        iter([numbered(SUBJECTS, [1, 3, 5]), numbered(SUBJECTS, [31, 32])]),
    ]

    messages = [entry for part in in_order(parts) for entry in told(part)]

    assert messages == [entry for n in (*range(6), 11, *range(30, 35)) for entry in expected(range(n, n + 1))]
    assert told(joined([numbered(other, [1]), numbered(SUBJECTS, [0])]))[1][1] == other[1]

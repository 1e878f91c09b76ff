"""Messages on their way to NATS: rendered, each with its subject, id and place, in the order of the source.

Those of one table come in the order of their changes. `in_order` puts those of several tables together as the
source committed them, with as few looks at single messages as there are pieces.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.changes.text_columns import bytes_of
from penstock.model.compiled import Bytes, Int64s
from penstock.model.errors import PenstockError

_RANKS = 4
"""Of each change: its own, and those of what is told before and behind it."""


class Place(NamedTuple):
    """Where a message stands in the stream of its source. A schema has a place of its own, before the first
    change under it: how far a table or a source came says which of the two is published."""

    commit_lsn: int
    rank: int
    """Within its transaction."""

    @classmethod
    def of_change(cls, commit_lsn: int, seq: int) -> Place:
        return cls(commit_lsn, seq * _RANKS)

    @property
    def seq(self) -> int:
        """Return which change it is, or is behind."""
        return self.rank // _RANKS

    @property
    def before(self) -> Place:
        return self._replace(rank=self.rank - 1)

    @property
    def behind(self) -> Place:
        return self._replace(rank=self.rank + 1)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a table cannot go on, and why: the change, or the schema, that cannot be a message."""

    place: Place
    error: PenstockError


def change_ranks(seqs: Int64s) -> Int64s:
    """Return the ranks of changes."""
    return seqs.astype(np.int64) * _RANKS


@dataclass(frozen=True, slots=True)
class Messages:
    payload: Bytes
    starts: Int64s
    ends: Int64s
    """Message n is the bytes starts[n] up to ends[n] of `payload`."""
    subjects: tuple[bytes, ...]
    subject_numbers: Int64s
    """Which of the subjects each message has."""
    ids: pa.StringArray
    commit_lsns: Int64s
    ranks: Int64s
    """Where each stands, as `Place` has it."""

    @classmethod
    def single(cls, payload: bytes, subject: str, id: str, place: Place) -> Messages:
        first = np.zeros(1, np.int64)
        return cls(
            bytes_of(payload),
            first,
            np.array([len(payload)], np.int64),
            (subject.encode(),),
            first,
            pa.array([id]),
            np.array([place.commit_lsn], np.int64),
            np.array([place.rank], np.int64),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        """Return how many bytes they have."""
        return int((self.ends - self.starts).sum())

    @property
    def last(self) -> Place:
        return Place(int(self.commit_lsns[-1]), int(self.ranks[-1]))

    @property
    def last_subject(self) -> str:
        return str(self.subjects[self.subject_numbers[-1]], "utf-8")

    def through(self, place: Place) -> int:
        """Return how many of them stand at this place or before it."""
        before = np.searchsorted(self.commit_lsns, place.commit_lsn, "left")
        there = np.searchsorted(self.commit_lsns, place.commit_lsn, "right")
        return int(before + np.searchsorted(self.ranks[before:there], place.rank, "right"))

    def slice(self, first: int, end: int | None = None) -> Messages:
        part = slice(first, end)
        return Messages(
            self.payload,
            self.starts[part],
            self.ends[part],
            self.subjects,
            self.subject_numbers[part],
            self.ids[part],
            self.commit_lsns[part],
            self.ranks[part],
        )

    def alone(self) -> Messages:
        """Return the same messages without what their payload has of others, from which they were cut."""
        first, end = int(self.starts.min()), int(self.ends.max())
        return replace(
            self, payload=self.payload[first:end], starts=self.starts - first, ends=self.ends - first
        )

    def numbered(self, numbers: Mapping[bytes, int]) -> Int64s:
        """Return the number of each message's subject, by another numbering."""
        return np.array([numbers[subject] for subject in self.subjects], np.int64)[self.subject_numbers]


def in_order(tables: Sequence[Iterator[Messages]]) -> Iterator[Messages]:
    """Yield the messages of several tables as their changes were committed. Of those at one place the table
    that comes first comes first."""
    heads = [(messages, rest) for rest in tables if (messages := next(rest, None)) is not None]
    while len(heads) > 1:
        bound = min(messages.last for messages, _ in heads)
        ready, left = [], []
        for messages, rest in heads:
            count = messages.through(bound)
            ready.append(messages.slice(0, count))
            following = messages.slice(count) if count < len(messages) else next(rest, None)
            if following is not None:
                left.append((following, rest))
        yield joined(ready)
        heads = left
    for messages, rest in heads:
        yield messages
        yield from rest


def joined(parts: Sequence[Messages]) -> Messages:
    """Return the messages of several parts as one, in order."""
    parts = [part.alone() for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    shifts = np.cumsum([0, *(len(part.payload) for part in parts)]).tolist()
    numbers: dict[bytes, int] = {}
    for subject in (subject for part in parts for subject in part.subjects):
        numbers.setdefault(subject, len(numbers))
    commit_lsns = np.concatenate([part.commit_lsns for part in parts])
    ranks = np.concatenate([part.ranks for part in parts])
    order = np.lexsort((ranks, commit_lsns))
    return Messages(
        np.concatenate([part.payload for part in parts]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=False)])[order],
        np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=False)])[order],
        tuple(numbers),
        np.concatenate([part.numbered(numbers) for part in parts])[order],
        pa.concat_arrays([part.ids for part in parts]).take(pa.array(order)),
        commit_lsns[order],
        ranks[order],
    )

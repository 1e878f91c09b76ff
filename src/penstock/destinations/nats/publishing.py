"""Changes into the stream: on the driver, or in a task of Spark's.

A batch is published by one of them, in the order of the source, through one connection: what the server takes
in a second is less than one renders.

By ids (`delivery: ids`) all messages of a batch go as one fast batch, each with its id. What comes a second
time is recognised by the server, within its deduplication window.

Atomically (`delivery: atomic`) they go in groups of whole transactions, and the last message of each group
says how far the source is (`positions`). A group is stored only if the group before is the last one there, so
that nothing is doubled and nobody else writes; what a position says is not published again. A transaction
that is larger than a group comes in several. Where a table has stopped the last of them is not whole: the
rest of its transaction is still to come.

Several groups are on their way at once, and each names the message that it comes behind before anybody knows
which that will be: it follows from how many were sent. Where others write to the stream as well it is another
one, and it may be just where a later group expects the one before it. So the first group is waited for, and
those behind it are stored only where the stream ends as expected: if others write meanwhile, all that are
left are refused, and the next attempt begins with the first of them.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from penstock.destinations.batch import ChangeBatch
from penstock.destinations.nats.documents import Form
from penstock.destinations.nats.frames import atomic_frames, fast_frames
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.messages import Messages, Place, Stop, in_order, joined
from penstock.destinations.nats.positions import NatsPosition, position_frame
from penstock.destinations.nats.rendering import TableMessages, logical_messages
from penstock.destinations.nats.schemas import Versions
from penstock.destinations.nats.sending import AtomicBatches, FastBatch, Sending
from penstock.destinations.prefetch import ahead
from penstock.model import TableId
from penstock.model.nats_access import Access

Kind = TypeVar("Kind", bound=Sending)

GROUP_BYTES = 1 << 20
"""A group has more only if a single transaction has: the server has to have room for all of it at once."""
PART_BYTES = 4 << 20
"""A single transaction that has more comes in parts, as one of too many messages does: 16 of them are on
their way at once, and each has to be taken within half a minute."""


@dataclass(frozen=True, slots=True)
class Way:
    """How messages are delivered."""

    access: Access
    form: Form
    group: int | None
    """Messages that the server takes at once; None: by ids."""
    kept: Mapping[str, str]
    """Headers of a position (`positions.kept_headers`)."""


@dataclass(frozen=True, slots=True)
class PublishWork:
    """What is to be published."""

    way: Way
    batch: ChangeBatch
    versions: Versions
    first: Messages | None = None
    """Comes before everything else."""
    position: NatsPosition | None = None
    """How far it came; None: by ids, which the server knows."""


@dataclass(frozen=True, slots=True)
class Published:
    stops: Mapping[TableId, Stop]
    """The tables that could not go on, and where."""
    position: NatsPosition | None
    """How far it is now."""


def publish(work: PublishWork) -> Published:
    link, position = NatsLink.of(work.way.access), work.position
    earlier = position.stops if position is not None else {}
    tables = [
        TableMessages(changes, work.way.form, work.versions, earlier.get(changes.delivery.id))
        for changes in work.batch.tables
    ]
    streams = [iter(table) for table in tables]
    if work.batch.messages:
        streams.append(logical_messages(work.batch.messages, work.batch.source, work.way.form))
    messages = _with_first(work.first, in_order(streams))

    def stops() -> Mapping[TableId, Stop]:
        return {table.changes.delivery.id: table.stop for table in tables if table.stop is not None}

    def is_whole(last: Place) -> bool:
        return last.commit_lsn < work.batch.end.value and not stops()

    if position is None:
        _by_ids(link, messages)
    else:
        position = _Atomically(link, work.way, position, stops).publish(messages, is_whole)
    return Published(stops(), position)


def _with_first(first: Messages | None, messages: Iterator[Messages]) -> Iterator[Messages]:
    if first is not None:
        yield first
    yield from messages


def _by_ids(link: NatsLink, messages: Iterator[Messages]) -> None:
    with _opened(link, FastBatch(link)) as batch:
        for frames, part in ahead(_fast_frames(messages, batch.reply)):
            link.run(batch.send(frames, len(part), part.last_subject), None)
        link.run(batch.end(), None)


def _fast_frames(messages: Iterator[Messages], reply: bytes) -> Iterator[tuple[bytes, Messages]]:
    """Yield the messages of a fast batch, and what they are on the wire."""
    first = 1
    for part in messages:
        if len(part):
            yield fast_frames(part, reply, first), part
            first += len(part)


@contextmanager
def _opened(link: NatsLink, sending: Kind) -> Iterator[Kind]:
    link.run(sending.open())
    try:
        yield sending
    finally:
        link.run(sending.close())


class _Atomically:
    """`stops`, asked with each group: which tables do not come as far as that."""

    def __init__(
        self, link: NatsLink, way: Way, position: NatsPosition, stops: Callable[[], Mapping[TableId, Stop]]
    ) -> None:
        assert way.group is not None
        self._stops = stops
        self._link = link
        self._most = way.group - 1
        self._way = way
        self._position = position
        self._batches = AtomicBatches(link)

    def publish(self, messages: Iterator[Messages], is_whole: Callable[[Place], bool]) -> NatsPosition:
        """`is_whole`, asked when there are no more: whether they are all of the last one's transaction."""
        with _opened(self._link, self._batches) as batches:
            for number, (group, complete) in enumerate(self._groups(self._new(messages), is_whole)):
                self._send(group, complete=complete, alone=number == 0)
            self._link.run(batches.end(), None)
        return self._position

    def _new(self, messages: Iterator[Messages]) -> Iterator[Messages]:
        """Leave out what is there already."""
        for part in ahead(messages):
            count = part.through(self._position.place) if self._position.place is not None else 0
            if count < len(part):
                yield part.slice(count)

    def _groups(
        self, messages: Iterator[Messages], is_whole: Callable[[Place], bool]
    ) -> Iterator[tuple[Messages, bool]]:
        """Yield groups of whole transactions, or a part of one that is larger; and whether it is whole."""
        parts: list[Messages] = []
        count = size = 0
        for part in messages:
            parts.append(part)
            count, size = count + len(part), size + part.size
            has_ended = parts[0].commit_lsns[0] != part.commit_lsns[-1]
            if count <= self._most and size <= (GROUP_BYTES if has_ended else PART_BYTES):
                continue
            held = joined(parts)
            while (cut := self._cut(held)) is not None:
                first, complete = cut
                yield held.slice(0, first), complete
                held = held.slice(first)
            parts, count, size = [held] if len(held) else [], len(held), held.size
        if parts:
            held = joined(parts)
            yield held, is_whole(held.last)

    def _cut(self, held: Messages) -> tuple[int, bool] | None:
        """Return how many messages are the next group, as many transactions as fit, and whether the last of
        them is whole; None: more may come to them."""
        sizes = np.cumsum(held.ends - held.starts)
        if len(held) <= self._most and (not len(held) or sizes[-1] <= GROUP_BYTES):
            return None
        ended = np.flatnonzero(np.diff(held.commit_lsns)) + 1
        fitting = ended[(ended <= self._most) & (sizes[ended - 1] <= GROUP_BYTES)]
        most = min(self._most, max(1, int(np.searchsorted(sizes, PART_BYTES, "right"))))
        alone = ended[:1][ended[:1] <= most]
        for whole in (fitting[-1:], alone):
            if len(whole):
                return int(whole[0]), True
        return (most, False) if len(held) > most else None

    def _send(self, group: Messages, *, complete: bool, alone: bool) -> None:
        """Send a group behind the one before; or `alone`, wherever the stream ends, and wait for it."""
        reply, count = self._batches.next_reply(), len(group) + 1
        batch = f"{self._batches.name}-{reply.rpartition('.')[2]}"
        following = self._position.after(group.last, count, complete=complete)
        following = replace(following, stops={**self._position.stops, **self._stops()})
        behind = None if alone else self._position.last_sequence
        frames = atomic_frames(group, batch, behind) + position_frame(
            self._position, following, batch, count, reply, self._way.kept
        )
        self._link.run(self._batches.send(frames, reply, count), None)
        if alone:
            self._link.run(self._batches.end(), None)
            following = following.at(self._batches.last_sequence)
        self._position = following

"""NATS: a backlog of changes into JetStream, against raw publishing, nats-py, and pg_recvlogical.

A pipeline that is up is held while the backlog is written (`pipeline.py`); the clock runs from its release
until the stream has a message for every change. The others then publish those of our first round, read
from the stream, to a server of their own with the same settings and a new stream of the same kind:
- rendered in advance, straight to a socket, the fastest way that there is for a mode (`raw_nats.py`);
- by nats-py's `publish_async`, each with its id; fewer of them, as it is the rate that counts.
pg_recvlogical reads the backlog to /dev/null. Once more the backlog is in the spool before the clock runs:
the source's server and the capture then leave the cores to who publishes, as they do to the others.

A server is slower the more a stream has and the more ids came lately. So after each run of ours the raw way
has one: both servers have taken as many messages when it is their turn, and have rested as long.

The modes: by ids; atomically; atomically, with a server that flushes before it acknowledges.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from bench.backlog import RECEIVER, TABLE, Backlog
from bench.pipeline import Pipeline
from bench.raw_nats import AtomicBatches, FastIngest, Message, RawConnection, RawWay, WithIds
from bench.report import Case, alternate
from bench.servers import GIVEN_UP, NeverArrived, Servers, two_servers
from bench.usage import Usage, watched
from penstock.destinations.nats import streams
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.embedded.nats import USER, NatsServer
from penstock.model.nats_access import Access

CHANGES = 1_000_000
WARM_UP = 20_000
"""Changes before the clock runs."""
TRANSACTION = 100
"""Changes of each."""
STREAM = "CDC"
SUBJECT = "cdc.t.insert"
SETTINGS = {"ping_interval": "1h"}
"""A pipeline that is held does not answer."""
ASYNC = "nats-py publish_async"
LOOK = 0.05
"""Seconds between looks at the stream: each costs the server something."""
FETCHED = 1000
"""Messages read at once."""


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    delivery: str
    raw: tuple[RawWay, RawWay]
    """What runs after each of our two runs of a round."""
    jetstream: Mapping[str, Any] = field(default_factory=dict)
    most_async: int = 100_000
    """Messages for publish_async."""


MODES = (
    Mode("ids", "ids", (FastIngest(), WithIds())),
    Mode("atomic", "atomic", (AtomicBatches(), AtomicBatches())),
    Mode(
        "atomic, sync_interval always",
        "atomic",
        (AtomicBatches(), AtomicBatches()),
        {"sync_interval": "always"},
        5_000,
    ),
)


def cases(rows: int | None) -> Iterator[Case]:
    changes = rows or CHANGES
    with two_servers() as servers:
        with servers.at_source() as connection:
            connection.execute(TABLE.encode())
        for number, mode in enumerate(MODES, 1):
            with (
                closing(JetStream(mode)) as ours,
                closing(JetStream(mode)) as theirs,
                closing(_Ours(servers, mode, ours, f"nats_{number}")) as pipeline,
            ):
                theirs.make_stream()
                yield from _compared(mode, pipeline, _Theirs(servers, theirs), changes)


@dataclass(frozen=True, slots=True)
class _Run:
    rate: float
    usage: Usage


class JetStream:
    """A server, and a connection that looks at it."""

    def __init__(self, mode: Mode) -> None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-nats-", dir="/tmp"))
        self.server = NatsServer(folder, SETTINGS, mode.jetstream)
        self.server.start()
        self.keys = {"servers": [self.server.url], "user": USER, "password": self.server.password}
        self.link = NatsLink.of(Access((self.server.url,), USER, self.server.password))

    def stored(self) -> int:
        request = {"subjects_filter": SUBJECT}
        state = self.link.run(streams.ask(self.link, f"STREAM.INFO.{STREAM}", request))["state"]
        return int((state.get("subjects") or {}).get(SUBJECT, 0))

    def make_stream(self) -> None:
        """Make the stream as a pipeline does."""
        self.link.run(streams.ensured(self.link, NatsOptions.model_validate(self.keys)))

    def last_messages(self, count: int) -> list[Message]:
        return self.link.run(self._last_messages(count), None)

    async def _last_messages(self, count: int) -> list[Message]:
        jetstream = await self.link.jetstream()
        state = (await jetstream.stream_info(STREAM)).state
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, state.last_seq - 2 * count),
        )
        subscription = await jetstream.pull_subscribe(SUBJECT, stream=STREAM, config=config)
        left = (await subscription.consumer_info()).num_pending or 0
        messages: list[Message] = []
        while left:
            fetched = await subscription.fetch(min(FETCHED, left), timeout=30)
            left -= len(fetched)
            messages += [_message(len(messages) + n, one.data) for n, one in enumerate(fetched)]
        await subscription.unsubscribe()
        return messages[-count:]

    def close(self) -> None:
        self.link.close()
        self.server.remove()


def _message(number: int, payload: bytes) -> Message:
    """Atomic batches have no ids of their own."""
    return Message(SUBJECT, f"0000000000000000-{number}-t-insert", payload)


class _Ours:
    """A pipeline that is held, but while it is its turn."""

    def __init__(self, servers: Servers, mode: Mode, jetstream: JetStream, name: str) -> None:
        self._servers = servers
        self.jetstream = jetstream
        self._pipeline = Pipeline(servers, name, nats=jetstream.keys | {"delivery": mode.delivery})
        self.backlog = Backlog(servers, self._pipeline.publication, TRANSACTION)
        with servers.at_source() as connection:
            connection.execute("truncate t")
        try:
            self._pipeline.start()
            self._pipeline.wait_until_ready(2)
            self.deliver(WARM_UP)
        except BaseException:
            self.close()
            raise

    def deliver(self, changes: int, *, captured: bool = False) -> _Run:
        """Deliver a backlog that is at the source, or in the spool already."""
        self._pipeline.hold()
        self.backlog.write(changes)
        if captured:
            self._pipeline.capture()
        wanted = self.jetstream.stored() + changes
        others = {"nats-server": self.jetstream.server.pid}
        with watched(self._servers, self._pipeline.pid, others) as usage:
            began = time.perf_counter()
            self._pipeline.release()
            while (stored := self.jetstream.stored()) < wanted:
                if time.perf_counter() - began > GIVEN_UP:
                    raise NeverArrived(f"the stream has {stored} of {wanted} messages")
                self._pipeline.check()
                time.sleep(LOOK)
            seconds = time.perf_counter() - began
        self._pipeline.hold()
        return _Run(changes / seconds, usage)

    def close(self) -> None:
        self.backlog.drop_slot()
        self._pipeline.remove()


@dataclass(frozen=True, slots=True)
class _Theirs:
    """Its stream grows as ours does: what it has makes the next message dearer."""

    servers: Servers
    jetstream: JetStream
    _rounds: Iterator[int] = field(default_factory=count)

    def raw(self, way: RawWay, messages: Sequence[Message]) -> _Run:
        pieces = list(way.pieces(self._renamed(messages)))
        with (
            self._stored(len(messages)),
            closing(RawConnection(self.jetstream.server)) as connection,
            self._watched() as usage,
        ):
            seconds = connection.publish(way, pieces)
        return _Run(len(messages) / seconds, usage)

    def with_nats_py(self, messages: Sequence[Message]) -> _Run:
        with self._stored(len(messages)), self._watched() as usage:
            seconds = asyncio.run(self._publish_async(self._renamed(messages)))
        return _Run(len(messages) / seconds, usage)

    def _renamed(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with ids that the server does not know."""
        number = next(self._rounds)
        return [message._replace(id=f"{number:016X}{message.id[16:]}") for message in messages]

    async def _publish_async(self, messages: Sequence[Message]) -> float:
        client = Client()
        await client.connect(**self.jetstream.link.access.arguments())
        jetstream = client.jetstream()
        began = time.perf_counter()
        for message in messages:
            headers = {"Nats-Msg-Id": message.id}
            await jetstream.publish_async(message.subject, message.payload, headers=headers)
        await jetstream.publish_async_completed()
        seconds = time.perf_counter() - began
        await client.close()
        return seconds

    @contextmanager
    def _watched(self) -> Iterator[Usage]:
        others = {"nats-server": self.jetstream.server.pid, "client": os.getpid()}
        with watched(self.servers, others=others) as usage:
            yield usage

    @contextmanager
    def _stored(self, messages: int) -> Iterator[None]:
        before = self.jetstream.stored()
        yield
        stored = self.jetstream.stored() - before
        if stored != messages:
            raise NeverArrived(f"the stream has {stored} of {messages} messages")


def _compared(mode: Mode, ours: _Ours, theirs: _Theirs, changes: int) -> Iterator[Case]:
    messages: list[Message] = []

    def deliver() -> _Run:
        run = ours.deliver(changes)
        if not messages:
            messages.extend(ours.jetstream.last_messages(changes))
        return run

    def receive() -> _Run:
        with watched(ours.backlog.servers) as usage:
            seconds = ours.backlog.receive()
        return _Run(changes / seconds, usage)

    delivered, first, captured, second, received, nats_py = alternate(
        deliver,
        lambda: theirs.raw(mode.raw[0], messages),
        lambda: ours.deliver(changes, captured=True),
        lambda: theirs.raw(mode.raw[1], messages),
        receive,
        lambda: theirs.with_nats_py(messages[: mode.most_async]),
    )
    way, raw = _fastest(mode.raw, first, second)
    where = f"{mode.name}: {changes:,} changes"
    for case, mine, against, runs, published in (
        (where, delivered, way, raw, changes),
        (where, delivered, ASYNC, nats_py, min(changes, mode.most_async)),
        (where, delivered, RECEIVER, received, changes),
        (f"{where}, captured before", captured, way, raw, changes),
    ):
        yield Case(
            case,
            _rate(mine),
            _rate(runs),
            "changes/s",
            _rate(mine) / _rate(runs),
            round(max(run.usage.ours_peak_mb for run in mine), 1),
            against,
            (
                f"our CPU seconds for a million: {mine[-1].usage.cpu_line(1e6 / changes)}",
                f"{against}: {runs[-1].usage.cpu_line(1e6 / published)}",
                f"our peak MB: {mine[-1].usage.memory_line()}",
            ),
        )


def _fastest(ways: tuple[RawWay, RawWay], first: list[_Run], second: list[_Run]) -> tuple[str, list[_Run]]:
    """Return its name and its runs; the runs of both, where it is the same way twice."""
    if ways[0].name == ways[1].name:
        return ways[0].name, first + second
    return max(zip((way.name for way in ways), (first, second), strict=True), key=lambda one: _rate(one[1]))


def _rate(runs: Sequence[_Run]) -> float:
    return median(run.rate for run in runs)

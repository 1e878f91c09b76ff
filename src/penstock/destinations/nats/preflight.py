"""The checks of `penstock check` for NATS: the server, JetStream, streams and their limits. They change
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimedOut

from penstock.destinations.nats import streams
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.streams import StreamInfo
from penstock.destinations.nats.subjects import POSITIONS, REQUESTS, SNAPSHOTS, collisions
from penstock.model import TableSchema
from penstock.model.errors import PenstockError
from penstock.postgres.preflight.check import Check, failure, ok, warning

NO_STREAM = "-"
"""What no stream can be called."""
SHORT = 3600.0
"""Seconds: what a stream keeps for less, a consumer that is away over lunch misses."""
_NEEDED = {
    "ids": ("allow_batched", streams.FIRST_BATCHED),
    "atomic": ("allow_atomic", streams.FIRST_ATOMIC),
}


def run(options: NatsOptions, tables: Sequence[TableSchema]) -> list[Check]:
    link = NatsLink.of(options.access())
    try:
        return [*_server(link, options), *_streams(link, options), *_rights(link, options), *_names(tables)]
    except PenstockError as error:
        return [failure("server", error.reason, error.remedy)]
    finally:
        link.close()


def _server(link: NatsLink, options: NatsOptions) -> Iterator[Check]:
    client = link.run(link.client())
    version = client.connected_server_version
    _, first = _NEEDED[options.delivery]
    host = client.connected_url.netloc if client.connected_url else link.access.shown
    server = f"NATS {version.major}.{version.minor}.{version.patch} at {host}"
    if (version.major, version.minor) < first:
        wanted = ".".join(map(str, first))
        yield failure(
            "server", f"{server}; `delivery: {options.delivery}` needs {wanted}", "Upgrade the server"
        )
    else:
        yield ok("server", f"{server}, messages of up to {client.max_payload} bytes")
    account = link.run(streams.ask(link, "INFO"))
    limits = account.get("limits", {})
    stored = int(limits.get("max_storage", -1))
    if stored == 0:
        yield failure("jetstream", "the account may store nothing", "Raise its `max_file`")
    else:
        room = (
            "without a limit" if stored < 0 else f"up to {stored} bytes, {account.get('storage', 0)} in use"
        )
        yield ok("jetstream", f"the account may store files, {room}")
    if options.sync == "always":
        yield _flushes(options)


def _streams(link: NatsLink, options: NatsOptions) -> Iterator[Check]:
    for name in streams.wanted(options):
        info = link.run(streams.info(link, name))
        label = f"stream {name}"
        if info is None and not options.create_streams:
            yield failure(label, "it is not there", "Make it, or set `create_streams: true`")
        elif info is None:
            yield ok(label, "it will be made")
        else:
            yield from _existing(label, info, options)


def _existing(label: str, stream: StreamInfo, options: NatsOptions) -> Iterator[Check]:
    needed, _ = _NEEDED[options.delivery]
    if stream.name == options.stream and not stream.allows(needed):
        yield failure(
            label, f"it does not allow what `delivery: {options.delivery}` needs", f"Set `{needed}` of it"
        )
        return
    if stream.name == f"KV_{options.schema_bucket}":
        yield ok(label, "it is there")
        return
    if stream.name == options.stream and not stream.keeps(f"{POSITIONS}.check"):
        yield warning(
            "positions",
            f"{stream.name} does not keep how far the changes came: nobody is told if it is restored",
            f"Let it take {POSITIONS}.>, and set `allow_msg_ttl` of it",
        )
    dropped = list(_dropped(stream))
    if dropped:
        yield warning(
            label,
            f"it drops messages whether anybody has read them or not: {', '.join(dropped)}",
            "Raise the limits, or set `discard: new`, so that Penstock waits for room",
        )
    else:
        yield ok(label, "it is there")


def _dropped(stream: StreamInfo) -> Iterator[str]:
    if 0 < stream.max_age < SHORT:
        yield f"after {stream.max_age:g} s (`max_age`)"
    if stream.config.get("discard") != "new":
        for key, unit in (("max_msgs", "messages"), ("max_bytes", "bytes")):
            limit = int(stream.config.get(key, -1))
            if limit > 0:
                yield f"beyond {limit} {unit} (`{key}`)"
    if int(stream.config.get("max_msgs_per_subject", -1)) > 0:
        yield f"beyond {stream.config['max_msgs_per_subject']} of a subject (`max_msgs_per_subject`)"


def _flushes(options: NatsOptions) -> Check:
    if streams.flushes_always(options):
        return ok("sync", "what is acknowledged is on the disk")
    return failure(
        "sync",
        "the server acknowledges what it has not flushed to its disk",
        "Set `sync_interval: always` under `jetstream` of the server",
    )


def _rights(link: NatsLink, options: NatsOptions) -> Iterator[Check]:
    """Publish where that is refused for another reason, so that nothing is stored; and hear requests."""
    remedy = "Grant it in the server's `permissions` of the user"
    for stream, subject in (
        (options.stream, f"{POSITIONS}.check"),
        (options.init_stream, f"{SNAPSHOTS}.check"),
    ):
        if link.run(streams.info(link, stream)) is not None and not link.run(_may_publish(link, subject)):
            yield failure("permissions", f"the user may not publish to {subject.partition('.')[0]}.>", remedy)
    link.run(_listen(link))
    if link.deaf_to_requests:
        detail = f"the user may not subscribe to {REQUESTS}.>: nobody gets a snapshot"
        yield warning("permissions", detail, remedy)


async def _may_publish(link: NatsLink, subject: str) -> bool:
    client = await link.client()
    try:
        await client.request(subject, b"", 2, headers={"Nats-Expected-Stream": NO_STREAM})
    except NatsTimedOut:
        return False
    return True


async def _listen(link: NatsLink) -> None:
    client = await link.client()

    async def heard(_: Msg) -> None: ...

    await client.subscribe(f"{REQUESTS}.check", cb=heard)
    await client.flush()
    await asyncio.sleep(0.2)  # what the server says against it is told in a task of its own


def _names(tables: Sequence[TableSchema]) -> Iterator[Check]:
    for group in collisions(table.name for table in tables):
        names = ", ".join(map(str, group))
        yield failure("subjects", f"these tables have one subject: {names}", "Exclude all but one of them")

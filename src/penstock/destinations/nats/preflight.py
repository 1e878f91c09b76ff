"""The checks of `penstock check` for NATS: the server, JetStream, streams and their limits. They change
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimedOut

from penstock.destinations.nats import streams
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.streams import StreamInfo
from penstock.destinations.nats.subjects import (
    CHANGES,
    MESSAGES,
    POSITIONS,
    REQUESTS,
    SNAPSHOTS,
    change_subject,
    collisions,
    token,
)
from penstock.model import TableSchema
from penstock.model.errors import PenstockError
from penstock.postgres.preflight.check import Check, failure, ok, warning

NO_STREAM = "-"
"""What no stream can be called."""
SHORT = 3600.0
"""Seconds: what a stream keeps for less, a consumer that is away over lunch misses."""
SHOWN = 5
"""Tables that are named where many have the same fault."""
_NEEDED = {
    "ids": ("allow_batched", streams.FIRST_BATCHED),
    "atomic": ("allow_atomic", streams.FIRST_ATOMIC),
}


def run(options: NatsOptions, tables: Sequence[TableSchema], positions: Sequence[str]) -> list[Check]:
    """`positions`: subjects such as those of this pipeline have."""
    link = NatsLink.of(options.access())
    try:
        return [
            *_server(link, options),
            *_streams(link, options, tables, positions),
            *_rights(link, options, positions),
            *_names(tables),
        ]
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


def _streams(
    link: NatsLink, options: NatsOptions, tables: Sequence[TableSchema], positions: Sequence[str]
) -> Iterator[Check]:
    for name in streams.wanted(options):
        stream = link.run(streams.info(link, name))
        label = f"stream {name}"
        if stream is None and not options.create_streams:
            yield failure(label, "it is not there", "Make it, or set `create_streams: true`")
            continue
        if stream is None:
            yield ok(label, "it will be made")
        else:
            subjects = _subjects(name, options, tables)
            found = [*_refused(label, stream, subjects), *_lost(label, stream, options)]
            if name == options.stream:
                found += _of_changes(label, stream, options, positions)
            yield from found
            if all(check.name != label for check in found):
                yield ok(label, "it is there")
        if name == options.stream and options.sync == "always":
            yield _flushes(stream, options)


def _subjects(stream: str, options: NatsOptions, tables: Sequence[TableSchema]) -> dict[str, list[str]]:
    """Return the subjects that a stream has to take, by table."""
    if stream == options.stream:
        return {
            str(table.name): [change_subject(table.name, operation) for operation in MESSAGES]
            for table in tables
        }
    if stream == options.init_stream:
        kinds = ("meta.{}", "error.{}", "snap.{}.id.0")
        return {
            str(table.name): [f"{SNAPSHOTS}.{kind.format(token(table.name))}" for kind in kinds]
            for table in tables
        }
    return {}


def _refused(label: str, stream: StreamInfo, subjects: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    """What the stream does not take, or does not confirm."""
    refused = {table: [s for s in each if not stream.takes(s)] for table, each in subjects.items()}
    if names := [table for table, each in refused.items() if each]:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield failure(
            label,
            f"it does not take all messages of {', '.join(names[:SHOWN])}{more}",
            f"Let it take {refused[names[0]][0]} and its like, or exclude the tables",
        )
    if stream.allows("no_ack"):
        yield failure(label, "it confirms nothing (`no_ack`)", "Set `no_ack: false` of it")


def _of_changes(
    label: str, stream: StreamInfo, options: NatsOptions, positions: Sequence[str]
) -> Iterator[Check]:
    needed, _ = _NEEDED[options.delivery]
    what = f"what `delivery: {options.delivery}` needs"
    if not stream.allows(needed):
        yield failure(label, f"it does not allow {what}", f"Set `{needed}` of it")
    if options.delivery == "atomic" and not all(map(stream.stores, positions)):
        remedy = f"Let it take {POSITIONS}.>, under `retention: limits`"
        yield failure(label, f"it does not keep {POSITIONS}.>, {what}", remedy)
    elif not all(map(stream.keeps, positions)):
        yield warning(
            "positions",
            f"{stream.name} does not keep how far the changes came: nobody is told if it is restored",
            f"Let it take {POSITIONS}.>, and set `allow_msg_ttl` of it",
        )


def _lost(label: str, stream: StreamInfo, options: NatsOptions) -> Iterator[Check]:
    """What the stream may lose of what it has confirmed."""
    if stream.in_memory:
        detail = "it is kept in memory: a server that restarts has lost it"
        yield warning(label, detail, "Make it anew with `storage: file`")
    if stream.name == f"KV_{options.schema_bucket}":
        return
    if stream.retention != "limits":
        detail = f"it removes messages that its present consumers have (`retention: {stream.retention}`)"
        yield warning(label, detail, "Make it anew with `retention: limits`: others will want them too")
    if dropped := list(_dropped(stream)):
        yield warning(
            label,
            f"it drops messages whether anybody has read them or not: {', '.join(dropped)}",
            "Raise the limits, or set `discard: new`, so that Penstock waits for room",
        )


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


def _flushes(stream: StreamInfo | None, options: NatsOptions) -> Check:
    flaw = streams.unflushed(stream, options)
    return ok("sync", "what is acknowledged is on the disk") if flaw is None else failure("sync", *flaw)


def _rights(link: NatsLink, options: NatsOptions, positions: Sequence[str]) -> Iterator[Check]:
    """Publish where that is refused for another reason, so that nothing is stored; and hear requests."""
    remedy = "Grant it in the server's `permissions` of the user"
    for name, first in ((options.stream, CHANGES), (options.init_stream, SNAPSHOTS)):
        stream = link.run(streams.info(link, name))
        if stream is None:
            continue
        subjects = [*map(_example, stream.subjects), *filter(stream.takes, positions)]
        ours = [subject for subject in subjects if subject.startswith(f"{first}.")]
        if not all(link.run(_may_publish(link, subject)) for subject in ours):
            yield failure("permissions", f"the user may not publish to {first}.>", remedy)
    link.run(_listen(link))
    if link.deaf_to_requests:
        detail = f"the user may not subscribe to {REQUESTS}.>: nobody gets a snapshot"
        yield warning("permissions", detail, remedy)


def _example(pattern: str) -> str:
    """Return a subject that a stream takes which has this one, perhaps with wildcards."""
    return pattern.replace(">", "*.*").replace("*", "check")


async def _may_publish(link: NatsLink, subject: str) -> bool:
    client = await link.client()
    try:
        await client.request(subject, b"", 2, headers={"Nats-Expected-Stream": NO_STREAM})
    except NatsTimedOut:
        return False
    except NoRespondersError:  # it takes nothing now; what it should take is looked at by itself
        return True
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

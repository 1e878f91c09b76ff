"""Streams and the bucket: made where they are missing, otherwise used as they are, and never altered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.subjects import CHANGES, SNAPSHOTS, is_of
from penstock.model.errors import NotReady

Document = Mapping[str, Any]

NANOSECONDS = 1_000_000_000
DEDUPLICATION = 120 * NANOSECONDS
HISTORY = 10
"""Versions of a schema that the bucket keeps."""
FIRST_ATOMIC = (2, 12)
FIRST_BATCHED = (2, 14)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What the server says of a stream."""

    config: Document
    state: Document
    max_payload: int
    """Bytes of a message, with its headers."""

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def subjects(self) -> Sequence[str]:
        return self.config.get("subjects") or ()

    def takes(self, subject: str) -> bool:
        return is_of(subject, self.subjects)

    def stores(self, subject: str) -> bool:
        """Whether it takes messages of this subject, and keeps them whether anybody reads them or not."""
        return self.takes(subject) and self.retention == "limits"

    def keeps(self, subject: str) -> bool:
        """Whether it takes messages of this subject, and one that asks for it stays there."""
        return self.stores(subject) and (not self.max_age or self.allows("allow_msg_ttl"))

    @property
    def retention(self) -> str:
        return str(self.config.get("retention", "limits"))

    @property
    def in_memory(self) -> bool:
        return self.config.get("storage") == "memory"

    def allows(self, what: str) -> bool:
        return bool(self.config.get(what))

    @property
    def largest(self) -> int:
        """Bytes of the largest message that it takes, with its headers."""
        own = int(self.config.get("max_msg_size", -1))
        return min(self.max_payload, own) if own > 0 else self.max_payload

    @property
    def max_age(self) -> float:
        """Seconds; 0: for ever."""
        return float(self.config.get("max_age", 0)) / NANOSECONDS


async def ask(link: NatsLink, endpoint: str, request: Document | None = None) -> Any:
    """Ask JetStream's API. Raises what it answers with, if that is an error."""
    client = await link.client()
    body = json.dumps(request).encode() if request is not None else b""
    try:
        answer = await client.request(f"$JS.API.{endpoint}", body, timeout=ANSWERING)
    except NoRespondersError:
        raise NotReady(
            "JetStream is not enabled at the server, or not for this account",
            remedy="Enable it: `jetstream` in the server's configuration, and in the account",
            servers=link.access.shown,
        ) from None
    document = json.loads(answer.data)
    if "error" in document:
        raise APIError.from_error(document["error"])
    return document


async def info(link: NatsLink, name: str) -> StreamInfo | None:
    """Return what is known of a stream; None if there is none of that name."""
    try:
        answer = await ask(link, f"STREAM.INFO.{name}")
    except NotFoundError:
        return None
    return StreamInfo(answer["config"], answer["state"], (await link.client()).max_payload)


def wanted(options: NatsOptions) -> dict[str, Document]:
    """Return the streams and the bucket as they are made, by name."""
    age = round(options.retention * NANOSECONDS)
    common = {
        "storage": "file",
        "retention": "limits",
        "num_replicas": options.replicas,
        "allow_direct": True,
    }
    changes = {
        "subjects": [f"{CHANGES}.>"],
        "max_age": age,
        "duplicate_window": min(DEDUPLICATION, age) if age else DEDUPLICATION,
        "allow_batched": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    bucket = {
        "subjects": [f"$KV.{options.schema_bucket}.>"],
        "max_msgs_per_subject": HISTORY,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "discard": "new",
    }
    named = {
        options.stream: changes,
        options.init_stream: {"subjects": [f"{SNAPSHOTS}.>"], "max_age": age},
        f"KV_{options.schema_bucket}": bucket,
    }
    return {name: {"name": name, **common, **own} for name, own in named.items()}


async def ensured(link: NatsLink, options: NatsOptions) -> StreamInfo:
    """Make what is missing; return the stream of changes."""
    for name, config in wanted(options).items():
        if await info(link, name) is None:
            if not options.create_streams:
                raise NotReady(
                    f"there is no stream {name}",
                    remedy="Make it, or set `create_streams: true`",
                    servers=link.access.shown,
                )
            await ask(link, f"STREAM.CREATE.{name}", config)
    changes = await info(link, options.stream)
    assert changes is not None
    return changes


def unflushed(stream: StreamInfo | None, options: NatsOptions) -> tuple[str, str] | None:
    """Return why an acknowledgement does not mean that the disk has it, where it is to, and the remedy."""
    if options.sync != "always":
        return None
    if stream is not None and stream.in_memory:
        return f"{stream.name} is kept in memory", "Make it anew with `storage: file`, or leave `sync` out"
    if _flushes_always(options):
        return None
    return (
        "the server acknowledges what it has not flushed to its disk",
        "Set `sync_interval: always` under `jetstream` of the server, or leave `sync` out",
    )


def _flushes_always(options: NatsOptions) -> bool:
    """Ask the server's monitoring whether an acknowledgement means that the disk has it."""
    try:
        with urllib.request.urlopen(f"{options.monitoring_url}/varz", timeout=5) as answer:
            varz = json.load(answer)
    except (urllib.error.URLError, HTTPException, OSError, ValueError):
        return False
    return bool(varz.get("jetstream", {}).get("config", {}).get("sync_always"))

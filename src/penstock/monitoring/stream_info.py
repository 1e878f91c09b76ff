"""`/streams/info`: a stream of JetStream, as its server describes it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from penstock.config import Config
from penstock.destinations.nats.options import NatsOptions
from penstock.model.errors import ConnectionFailed, PenstockError, Scope
from penstock.model.secrets import without_secrets

PATIENCE = 5.0


class UnknownStream(PenstockError):
    """There is no such stream here."""

    scope = Scope.RUN
    remedy = "Name a stream of a NATS destination, such as ?stream=CDC; the pipeline makes it when it starts"


async def described(config: Config, stream: str | None) -> dict[str, Any]:
    """Return what the server says of a stream; without a name, of the one for changes. Raises UnknownStream,
    ConnectionFailed."""
    for destination in config.destinations:
        if destination.type != "nats":
            continue
        options = destination.settings(NatsOptions)
        if stream in (None, options.stream, options.init_stream):
            return {"destination": destination.name, **await _asked(options, stream or options.stream)}
    raise UnknownStream("no NATS destination has such a stream")


async def _asked(options: NatsOptions, stream: str) -> dict[str, Any]:
    access, client = options.access(), Client()
    try:
        async with asyncio.timeout(PATIENCE):
            await client.connect(
                **access.arguments(), name="penstock monitoring", allow_reconnect=False, error_cb=_ignored
            )
            info = await client.jetstream().stream_info(stream)
    except nats.js.errors.NotFoundError:
        raise UnknownStream(f"the server has no stream {stream}") from None
    except (OSError, TimeoutError, nats.errors.Error) as error:
        reason = without_secrets(str(error)) or type(error).__name__
        raise ConnectionFailed(f"NATS does not answer: {reason}", servers=access.shown) from None
    finally:
        with suppress(AssertionError):  # nats-py's, where it had not begun
            await client.close()
    document: dict[str, Any] = json.loads(json.dumps(info.as_dict(), default=str))
    return document


async def _ignored(_: Exception) -> None:
    """What it is about is raised, too."""

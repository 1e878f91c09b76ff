"""Where the messages are, and how to get in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client

from penstock.model.errors import AccessDenied, FeedUnreachable
from penstock.model.nats_access import Access, Tls
from penstock.model.secrets import without_secrets

CONNECT_SECONDS = 10.0
RECONNECT_SECONDS = 1
TRIES = 4


@dataclass(frozen=True, slots=True)
class TlsFiles:
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ConsumerAccess:
    """A NATS destination as its consumers see it: the keys of the same names in the configuration."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: Path | None = None
    nkey_file: Path | None = None
    tls: TlsFiles | None = None
    stream: str = "CDC"
    init_stream: str = "INIT"
    schema_bucket: str = "schemas"
    encoding: Literal["msgpack", "json"] = "msgpack"

    def __repr__(self) -> str:
        return f"ConsumerAccess({self.shown}, stream={self.stream})"

    @property
    def shown(self) -> str:
        """The servers, without what may be secret in their addresses."""
        return ", ".join(_shown(server) for server in self.servers)


async def connect(access: ConsumerAccess) -> Client:
    """Return a connection, which is made again by itself whenever it is lost. Raises FeedUnreachable."""
    client = Client()
    failures, connecting = 0, True

    async def note(error: Exception) -> None:
        """At first every server is tried once, or some times if it hangs up without a word: we may have been
        too slow for it. Later the connection is waited for."""
        nonlocal failures
        failures += 1
        tries = TRIES if isinstance(error, ConnectionResetError) else 1
        if connecting and failures >= tries * len(access.servers):
            raise error

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.connect(
                error_cb=note,
                name="penstock consumer",
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,
                **_arguments(access),
            )
    except (OSError, TimeoutError, nats.errors.Error, ValueError, ImportError, AccessDenied) as error:
        connecting = False
        with suppress(AssertionError):  # nats-py's, where it had not begun
            await client.close()
        text = error.reason if isinstance(error, AccessDenied) else str(error)
        reason = without_secrets(text) or type(error).__name__
        raise FeedUnreachable(f"no NATS server lets us in: {reason}", servers=access.shown) from None
    connecting = False
    return client


def _arguments(access: ConsumerAccess) -> dict[str, Any]:
    tls = access.tls
    return Access(
        access.servers,
        access.user,
        access.password,
        access.token,
        _text(access.creds_file),
        _text(access.nkey_file),
        Tls(_text(tls.ca_file), _text(tls.cert_file), _text(tls.key_file)) if tls else None,
    ).arguments()


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def _shown(server: str) -> str:
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname}{port}"

"""A connection to NATS, for code that does not run in an event loop.

nats-py is asyncio; Spark's tasks and the pipeline are threads. A `NatsLink` has a loop of its own in a thread
and one connection, which it makes when it is first used, and again after it was closed or went deaf: what
nats-py cannot decode ends its reading. So what strangers send has a connection of its own. A process keeps
its links: a Python worker of Spark serves many tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
from nats.aio.client import Client
from nats.errors import AuthorizationError, Error, MaxPayloadError
from nats.errors import TimeoutError as NatsTimedOut
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from penstock.destinations.nats.subjects import REQUESTS
from penstock.model.errors import (
    AccessDenied,
    ConnectionFailed,
    DestinationUnready,
    MessageTooLarge,
    NotReady,
    PenstockError,
)
from penstock.model.nats_access import Access
from penstock.model.secrets import without_secrets
from penstock.model.text import error_summary

Result = TypeVar("Result")

CONNECTING = 5.0
ANSWERING = 30.0
"""Seconds that a server may take for an answer."""
NAME = "penstock"
_AUTHORIZATION = ("authorization", "authentication", "permissions violation")

_links: dict[tuple[int, Access], NatsLink] = {}
_lock = threading.Lock()


class NatsLink:
    def __init__(self, access: Access) -> None:
        self.access = access
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        self.deaf_to_requests = False
        """Whether the user may not subscribe to requests for snapshots."""
        self._client: Client | None = None
        self._hearing: Client | None = None
        self._is_closing = False
        self._connecting = asyncio.Lock()
        self.listeners: set[Callable[[BaseException], None]] = set()
        """Are told, in the loop, what the server refuses, and that the connection is gone."""

    @classmethod
    def of(cls, access: Access) -> NatsLink:
        """Return this process's link to these servers."""
        key = os.getpid(), access
        with _lock:
            if key not in _links:
                _links[key] = cls(access)
            return _links[key]

    def run(self, work: Coroutine[Any, Any, Result], seconds: float | None = ANSWERING) -> Result:
        """Do something in the loop, and wait for its result. What NATS says against it is raised as an error
        of ours."""
        future = self.begin(work)
        try:
            return future.result(seconds)
        except (Error, OSError) as error:
            future.cancel()
            raise self.explained(error) from None
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Have something done in the loop, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def client(self) -> Client:
        """Return the connection, which is made if there is none."""
        async with self._connecting:
            if self._client is None or not _is_alive(self._client):
                await _let_go(self._client)
                self._client = await self._connected(self._tell)
            return self._client

    async def hearing(self) -> Client:
        """Return the connection on which strangers are heard and answered. Its end is nobody's failure."""
        async with self._connecting:
            if self._hearing is None or not _is_alive(self._hearing):
                await _let_go(self._hearing)
                self._hearing = await self._connected(_log)
            return self._hearing

    async def answers(self) -> None:
        """Raise what keeps the server from answering: nobody else notices while nothing is published."""
        await (await self.client()).flush(int(CONNECTING))

    async def jetstream(self) -> JetStreamContext:
        return (await self.client()).jetstream(timeout=ANSWERING)

    async def _connected(self, tell: Callable[[BaseException], None]) -> Client:
        """Connect; `tell` hears what the server refuses, and that the connection has ended, if not by us."""
        client, has_ended = Client(), False

        async def refused(error: Exception) -> None:
            if REQUESTS in str(error):  # who may not hear requests can still publish
                self.deaf_to_requests = True
            else:
                tell(error)

        def end() -> None:
            nonlocal has_ended
            if not (has_ended or self._is_closing):
                tell(ConnectionFailed("the connection to NATS is gone", servers=self.access.shown))
            has_ended = True

        async def gone() -> None:
            end()

        try:
            # It is not nats-py that connects again: what was on its way then has to be sent again, in order.
            await client.connect(
                **self.access.arguments(),
                name=NAME,
                connect_timeout=CONNECTING,  # type: ignore[arg-type]
                allow_reconnect=False,
                flush_timeout=CONNECTING,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=refused,
                disconnected_cb=gone,
            )
        except BaseException:
            await _let_go(client)
            raise
        assert client._reading_task is not None
        client._reading_task.add_done_callback(lambda _: end())
        return client

    def _tell(self, error: BaseException) -> None:
        for listener in list(self.listeners):
            listener(error)

    def explained(self, error: BaseException) -> PenstockError:
        """Return an error of NATS as one of ours."""
        reason = without_secrets(str(error) or type(error).__name__)
        where = {"servers": self.access.shown}
        if isinstance(error, AuthorizationError) or any(word in reason.lower() for word in _AUTHORIZATION):
            return AccessDenied(
                f"NATS does not let us in, or not do this: {reason}",
                remedy="Mend user and password, token or file of credentials, or the user's permissions",
                **where,
            )
        if isinstance(error, MaxPayloadError):
            return MessageTooLarge("a message has more bytes than the NATS server takes", **where)
        if isinstance(error, NotFoundError):
            return NotReady(reason, remedy="Let `create_streams` make what is missing, or make it", **where)
        if isinstance(error, ServiceUnavailableError):
            return DestinationUnready(f"JetStream takes nothing now: {reason}", **where)
        if isinstance(error, APIError):
            return DestinationUnready(f"JetStream refuses: {error.description or reason}", **where)
        if isinstance(error, TimeoutError | NatsTimedOut):
            reason = "it does not answer"
        return ConnectionFailed(f"the NATS server cannot be reached: {reason}", **where)

    def close(self) -> None:
        with _lock:
            _links.pop((os.getpid(), self.access), None)
        with contextlib.suppress(PenstockError):
            self.run(self._closed(), CONNECTING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONNECTING)
        if not self._thread.is_alive():
            self._loop.close()

    async def _closed(self) -> None:
        self._is_closing = True
        await _let_go(self._client)
        await _let_go(self._hearing)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _is_alive(client: Client) -> bool:
    return not client.is_closed and client._reading_task is not None and not client._reading_task.done()


def _log(error: BaseException) -> None:
    structlog.get_logger("penstock.nats").warning(
        "requests for snapshots are not heard", error=error_summary(error)
    )


async def _let_go(client: Client | None) -> None:
    """Close a connection for good: nats-py leaves the socket open where it fails to say goodbye."""
    if client is None:
        return
    with contextlib.suppress(Exception):
        await client.close()
    if client._transport is not None:
        with contextlib.suppress(Exception):
            client._transport.close()  # type: ignore[no-untyped-call]
            await client._transport.wait_closed()  # type: ignore[no-untyped-call]

"""Answers to those who ask for snapshots: a reply, or a message in the stream where they wait for none.

Anybody may ask, for anything, and have the reply sent anywhere. So what comes of it is nobody else's failure:
it goes through a connection of its own, and not to subjects that mean something to us or to the server. What
the stream is told waits for its turn, once for each name.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import structlog
from nats.errors import Error

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.documents import packed
from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.subjects import CHANGES, REQUESTS, SNAPSHOTS
from penstock.model.errors import PenstockError
from penstock.model.text import error_summary

BETWEEN_ERRORS = 0.1
"""Seconds: whoever may ask must not fill the stream."""
MOST_WAITING = 100
"""Errors that wait for their turn in the stream."""
_NAME = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_LONGEST_NAME = 1000
_NOT_FOR_REPLIES = ("$", f"{CHANGES}.", f"{SNAPSHOTS}.", f"{REQUESTS}.")


def may_be_answered(reply: str) -> bool:
    return bool(reply) and not reply.startswith(_NOT_FOR_REPLIES)


class Answers:
    """All of it runs in the link's loop, and raises nothing of NATS's."""

    def __init__(self, link: NatsLink, encoding: Encoding) -> None:
        self._link = link
        self._encoding = encoding
        self._waiting: dict[str, dict[str, Any]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("penstock.nats")

    async def reply(self, subject: str, document: dict[str, Any]) -> None:
        try:
            await (await self._link.hearing()).publish(subject, packed(document, self._encoding))
        except (Error, OSError, ValueError, PenstockError) as error:
            self._fail(error)

    def tell(self, table: str, document: dict[str, Any]) -> None:
        """Tell in the stream that there is no snapshot, when it is its turn."""
        is_name = len(table) <= _LONGEST_NAME and _NAME.fullmatch(table)
        if not is_name or (table not in self._waiting and len(self._waiting) >= MOST_WAITING):
            return
        self._waiting[table] = document
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._waiting:
            table = next(iter(self._waiting))
            payload = packed(self._waiting.pop(table), self._encoding)
            try:
                jetstream = (await self._link.hearing()).jetstream(timeout=ANSWERING)
                await jetstream.publish(f"{SNAPSHOTS}.error.{table}", payload)
            except (Error, OSError, ValueError, PenstockError) as error:
                self._fail(error)
            await asyncio.sleep(BETWEEN_ERRORS)

    def _fail(self, error: BaseException) -> None:
        self._log.warning("a request for a snapshot could not be answered", error=error_summary(error))

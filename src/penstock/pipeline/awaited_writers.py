"""Tables of one source whose copies wait for who wrote to them before all of their changes were kept.

That may take hours (a session that idles in its transaction, a prepared one that nobody ends), so it takes no
worker of the copies from other tables. One query for all that wait is asked again and again, in a thread of
its own, and who is waited for is told. After a crash of the server transactions are called otherwise: who is
waited for is remembered with the connection, and found out anew by the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from penstock.config import SourceConfig
from penstock.model import Lsn
from penstock.model.errors import PenstockError, TableBusy
from penstock.postgres.connection import Connection, connect, wait_briefly
from penstock.postgres.writers import WritingTransaction, still, writers
from penstock.state.store import TableKey

SOON, SELDOM = 0.05, 0.5
"""Seconds between two looks at the locks, which all sessions share: often at first, then less and less."""
TOLD = 2.0
"""Seconds after which it is told who is waited for: most end by themselves before."""
NAMED = 5
REMEDY = (
    "It is copied by itself when they have ended. If nobody else ends them: `pg_terminate_backend`, "
    "`rollback prepared`"
)

Tell = Callable[[TableKey, TableBusy | None], None]
"""Puts down what a table waits for; None: for nobody any more."""


@dataclass
class _Waiting:
    member: frozenset[str]
    """What makes the table published. If that has changed meanwhile, there are others to be waited for;"""
    held: Lsn
    """and so if its changes are kept from another place on."""
    since: float
    tell: Tell
    writers: set[WritingTransaction] | None = None
    """None: not asked yet."""
    told: str = ""


class AwaitedWriters:
    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._waiting: dict[TableKey, _Waiting] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"writers-{source.name}")
        self._asking: Future[None] | None = None
        self._connection: Connection | None = None
        self._pause, self._again_at = SOON, 0.0

    def __contains__(self, table: TableKey) -> bool:
        """Whether the table still waits."""
        waiting = self._waiting.get(table)
        return waiting is not None and waiting.writers != set()

    def have_ended(
        self, connection: Connection, table: TableKey, member: frozenset[str], held: Lsn, tell: Tell
    ) -> bool:
        """Whether all have ended who wrote to the table before. If not, it waits from now on."""
        with self._lock:
            waited = self._waiting.pop(table, None)
        if waited is not None and (waited.member, waited.held, waited.writers) == (member, held, set()):
            return True
        if not writers(connection, [table.table])[table.table]:
            return True
        with self._lock:
            self._waiting[table] = _Waiting(member, held, time.monotonic(), tell)
            self._pause, self._again_at = SOON, 0.0
        return False

    def look(self) -> None:
        """Ask, if it is time to."""
        if time.monotonic() < self._again_at or not self._waiting:
            return
        if self._asking is None or self._asking.done():
            self._asking = self._thread.submit(self._ask)

    def forget_but(self, tables: Collection[TableKey]) -> None:
        """Forget all others: they are not to be copied now."""
        with self._lock:
            for table in self._waiting.keys() - tables:
                del self._waiting[table]

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._disconnect()

    def _ask(self) -> None:
        with self._lock:
            waiting = dict(self._waiting)
            self._again_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 1.5, SELDOM)
        try:
            now = writers(self._connected(), {table.table for table in waiting})
        except (PenstockError, psycopg.Error):  # whoever else asks the server tells of it
            self._disconnect()
            for each in waiting.values():
                each.writers = each.writers and None  # who has ended has, whatever the server does
            return
        for table, each in waiting.items():
            current = now[table.table]
            each.writers = current if each.writers is None else still(each.writers, current)
            with suppress(PenstockError):
                self._tell(table, each)

    def _tell(self, table: TableKey, waiting: _Waiting) -> None:
        """Tell who is waited for where that is not told yet. The store may be away: then the next time."""
        reason = _reason(waiting.writers or ())
        if reason == waiting.told or (not waiting.told and time.monotonic() - waiting.since < TOLD):
            return
        waiting.tell(table, TableBusy(reason, remedy=REMEDY) if reason else None)
        waiting.told = reason

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._source.conninfo())
            wait_briefly(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reason(awaited: Collection[WritingTransaction]) -> str:
    if not awaited:
        return ""
    names = sorted(map(str, awaited))
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"transactions that wrote to the table before its changes were kept must end first: {listed}"

"""A copy's snapshot, let go as soon as somebody waits for its lock.

The lock keeps out who wants to alter or empty the table, or to make or drop a partition; and everybody who
comes after him waits for him. So the server is asked again and again, while rows are read, whether anybody
waits. Then the lock is let go, those who read are cancelled, and the copy fails as `TableBusy`, to be tried
again. What was read is the table at one moment only if the lock was there until all had been read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from penstock.model.errors import PenstockError
from penstock.postgres.snapshot import Snapshot

LOOK_SECONDS = 0.5


class WatchedSnapshot:
    def __init__(self, snapshot: Snapshot, cancel: Callable[[], object]) -> None:
        self.snapshot = snapshot
        self._cancel = cancel
        self._ended = threading.Event()
        self._error: PenstockError | None = None
        self._thread = threading.Thread(target=self._watch, name="snapshot-watch")

    def rows_read(self) -> None:
        """End the snapshot, since all is read; raise if it had ended before."""
        self._end()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if self._error is None:
                self._look(self.snapshot.give_way)
            if self._error is not None:
                self._cancel()  # again and again: a job that only begins now would not notice

    def _look(self, look: Callable[[], None]) -> None:
        try:
            look()
        except PenstockError as error:
            self._error = error

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        if self._error is None:
            self._look(self.snapshot.alive)
        self.snapshot.close()

    def __enter__(self) -> WatchedSnapshot:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise, if the snapshot has ended, that in place of what came of it."""
        self._end()
        if error is not None and self._error is not None:
            raise self._error from None

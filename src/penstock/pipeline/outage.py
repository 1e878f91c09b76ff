"""What keeps a source from its destination: told once to the log, and to `penstock status` for as long as it
lasts."""

from __future__ import annotations

import contextlib

import structlog

from penstock.model.errors import PenstockError, StateUnreachable
from penstock.state.store import Store


class Outage:
    def __init__(self, store: Store, source: str, destination: str) -> None:
        self.error: PenstockError | None = None
        self._store = store
        self._stream = source, destination
        self._log = structlog.get_logger("penstock.pipeline").bind(source=source, destination=destination)

    def tell(self, error: PenstockError | None) -> None:
        """Tell that the destination is waited for, or that it recovered, if that was not told yet."""
        if _same(error, self.error):
            return
        self.error = error
        if error is None:
            self._log.info("destination recovered")
        else:
            self._log.warning("waiting for the destination", error=str(error))
        with contextlib.suppress(StateUnreachable):
            self.record()

    def record(self) -> None:
        """Have the state tell what is so now, whatever a run before, that was killed, left there."""
        self._store.waits(*self._stream, self.error)


def _same(one: PenstockError | None, other: PenstockError | None) -> bool:
    """Whether two errors say the same of the same thing, if not of the same file."""
    if one is None or other is None:
        return one is other
    return (type(one), one.reason) == (type(other), other.reason)

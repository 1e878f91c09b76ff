"""The next item while one is in use: reading and encoding goes on while PostgreSQL works.

Arrow and libpq let other threads run while they are busy, so a thread is enough.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, each made while the one before is used; an error comes where its item would."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(1)
    stop = threading.Event()

    def make() -> None:
        try:
            for item in items:
                if not _put(ready, (item,), stop):
                    return
            _put(ready, None, stop)
        except BaseException as error:
            _put(ready, error, stop)

    maker = threading.Thread(target=make, name="ahead", daemon=True)
    maker.start()
    try:
        while (entry := ready.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stop.set()
        maker.join()


def _put(
    ready: queue.Queue[tuple[Item] | BaseException | None],
    what: tuple[Item] | BaseException | None,
    stop: threading.Event,
) -> bool:
    """Put it into the queue; return False if nobody wants it any more."""
    while not stop.is_set():
        try:
            ready.put(what, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False

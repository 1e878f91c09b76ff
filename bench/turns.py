"""Two sides that take turns with the same changes: our pipeline and PostgreSQL's own subscription.

Both have seen the same tables; both are held, except the one whose turn it is. So whatever is written while
they are held is a backlog for each, and each has the machine to itself while it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from bench.pipeline import Pipeline
from bench.servers import MARK, Servers
from bench.subscription import Subscription
from bench.usage import Usage, watched


class Side(Protocol):
    database: str

    def hold(self) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn gave, how long it took, and what it used."""

    figures: tuple[float, ...]
    seconds: float
    """From the side's release on."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class Turns:
    servers: Servers
    ours: Pipeline
    native: Subscription
    tables: tuple[str, ...]

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.native

    def take(self, side: Side, measure: Callable[[str], Sequence[float]]) -> Turn:
        """Release the side, measure at its database, hold it again."""
        if side is self.ours:
            self.ours.check()
        with watched(self.servers, self.ours.pid if side is self.ours else None) as usage:
            began = time.perf_counter()
            side.release()
            figures = tuple(measure(side.database))
            seconds = time.perf_counter() - began
        side.hold()
        return Turn(figures, seconds, usage)

    def deliver(self, side: Side, mark: int) -> Turn:
        """A turn that is over when the mark has arrived."""

        def arrived(database: str) -> Sequence[float]:
            self.servers.wait_for(mark, database)
            return ()

        return self.take(side, arrived)

    def settle(self) -> None:
        """Let both deliver all that there is, and see that it is right."""
        mark = self.servers.mark()
        for side in self.sides:
            side.release()
            self.servers.wait_for(mark, side.database)
            side.hold()
            self.servers.prove_equal(side.database, self.tables)


@contextmanager
def taking_turns(servers: Servers, tables: dict[str, str], interval: str = "1s") -> Iterator[Turns]:
    """Both sides set up and held. `tables`, each with the statement that made it, are at the source."""
    names = ("mark", *tables)
    servers.make_database("native", MARK, *tables.values())
    native = Subscription(servers, names)
    native.create()
    native.wait_until_ready()
    native.hold()
    servers.make_database("ours")
    ours = Pipeline(servers, interval=interval)
    try:
        ours.start()
        ours.wait_until_ready(len(names))
        ours.hold()
        turns = Turns(servers, ours, native, names)
        turns.settle()
        yield turns
    finally:
        ours.remove()
        native.remove()

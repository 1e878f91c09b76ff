"""What was begun for a stream and has to be finished before anything else is begun.

An answer may be lost: whether a batch was written or a table handed over is not known then. Or the store is
away just when there is something to be put down. The stream must not go on in either case, since what it has
to deliver hangs on the outcome. So the steps of a piece of work are planned once, and each is done again, as
it was planned, until it succeeds. After a crash it is the destination that remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Step = Callable[[], None]
"""Done twice it does no more than once, as far as the destination can."""


class Unfinished:
    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._is_stepping = False

    def do(self, *steps: Step) -> None:
        """Do the steps one after the other. Raises what keeps one from being done: it stays to be done.
        From within a step: after all that are planned."""
        self._steps.extend(steps)
        if not self._is_stepping:
            self.finish()

    def then(self, step: Step) -> None:
        """Plan another step, from within one, after all that are planned."""
        self._steps.append(step)

    def finish(self) -> None:
        """Do what is left of what was begun, if anything is."""
        while self._steps:
            planned = len(self._steps)
            self._is_stepping = True
            try:
                self._steps[0]()
            except BaseException:
                while len(self._steps) > planned:  # the step that planned them comes again
                    self._steps.pop()
                raise
            finally:
                self._is_stepping = False
            self._steps.popleft()

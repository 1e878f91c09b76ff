"""SIGTERM and SIGHUP as Ctrl-C: what was made for a command is removed before it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from penstock.model.errors import PenstockError


class Ending:
    """Signals that end the process, as an exception, so that everything is left in good order."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._came = 0
        self._held = False

    def __enter__(self) -> Ending:
        caught = [number for number in self.SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._end) for number in caught}  # nohup ignores SIGHUP
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and self._came:
            raise typer.Exit(128 + self._came)

    @property
    def is_interrupt(self) -> bool:
        """Whether it was Ctrl-C that came."""
        return self._came == signal.SIGINT

    def _end(self, number: int, _frame: FrameType | None) -> None:
        again, self._came = self._came, number
        if not self._held and (not again or number == signal.SIGINT):  # a second Ctrl-C insists
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals inside the block, so that what is made there is sure to be removed."""
        self._held = True
        try:
            yield
        except PenstockError:  # Ctrl-C on a terminal goes to the programs that we wait for, too
            if not self._came:
                raise
        finally:
            self._held = False
        if self._came:
            raise KeyboardInterrupt

"""A few lines at the bottom of the terminal that are redrawn, with everything else above them.

All that this process and its children write to standard error while it is shown goes through a pipe: whoever
wrote it, it is a line above, whole and in its order. One thread empties the pipe, another writes to the
terminal. So nobody waits for a terminal that is stopped (Ctrl-S): of what waits then the oldest is dropped,
and how much is told.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.model.text import error_summary

REFRESH, REDRAW = 0.25, 1.0
"""Seconds between two looks for lines, which are drawn beneath anew, and at most between two drawings."""
MOST_WAITING = 10_000
"""Lines that wait for the terminal."""
LONGEST_END = 5.0
"""Seconds to wait for a terminal that does not take the last lines."""
_READ = 1 << 16


class Passage:
    """Standard error as a pipe, from whose other end lines are taken."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self.terminal: TextIO = os.fdopen(
            os.dup(2), "w", encoding=sys.stderr.encoding, errors="backslashreplace"
        )
        self._from, to = os.pipe()
        os.dup2(to, 2)
        os.close(to)
        self._lines: deque[str] = deque(maxlen=MOST_WAITING)
        self._rest = b""
        self._lost = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._empty, name="passage", daemon=True)
        self._thread.start()

    def take(self) -> list[str]:
        """Return the lines that came since the last time."""
        lost, self._lost = self._lost, 0
        lines = [f"… {lost} lines were dropped: the terminal did not take them"] if lost else []
        with suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        return lines

    def close(self) -> None:
        """Give standard error back. What was written until now can still be taken."""
        sys.stderr.flush()
        os.dup2(self.terminal.fileno(), 2)
        self._closing.set()
        self._thread.join()
        os.close(self._from)

    def _empty(self) -> None:
        while True:
            closing = self._closing.is_set()  # then all that was written is in the pipe
            if not select.select([self._from], [], [], 0 if closing else 0.1)[0]:
                if closing:
                    break
                continue
            read = os.read(self._from, _READ)
            if not read:
                break
            *whole, self._rest = (self._rest + read).split(b"\n")
            for line in whole:
                self._keep(line)
        if self._rest:
            self._keep(self._rest)

    def _keep(self, line: bytes) -> None:
        if len(self._lines) == MOST_WAITING:
            self._lost += 1
        self._lines.append(line.decode(errors="backslashreplace"))


class LiveDisplay:
    """Shows what `render` returns for as long as it is entered; then nothing is left of it."""

    def __init__(self, render: Callable[[], RenderableType]) -> None:
        self._render = render
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="display", daemon=True)

    def __enter__(self) -> LiveDisplay:
        self._passage = Passage()
        console = Console(file=self._passage.terminal, highlight=False, emoji=False, markup=False)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._passage.close()
        self._ended.set()
        self._thread.join(LONGEST_END)

    def _draw(self) -> None:
        with suppress(OSError), self._live:  # the terminal may be gone: then there is nobody to show it to
            drawn, ended = -REDRAW, False
            while not ended:
                ended = self._ended.wait(REFRESH)
                has_news = self._above()
                if has_news or time.monotonic() - drawn >= REDRAW:
                    drawn = time.monotonic()
                    self._live.update(self._rendered(), refresh=True)

    def _above(self) -> bool:
        """Write the lines that came, if any did."""
        lines = self._passage.take()
        if lines:
            self._live.console.print(Text.from_ansi("\n".join(lines)), soft_wrap=True)
        return bool(lines)

    def _rendered(self) -> RenderableType:
        try:
            return self._render()
        except Exception as error:  # whatever it is, the work goes on
            return Text(error_summary(error), style="red")

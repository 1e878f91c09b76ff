"""A program in a terminal of its own: what is typed into it, and what it shows."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A process that opens a terminal while it leads a session without one is controlled by it: Ctrl-C works.
_CONTROLLED = """if True:
    import os, sys
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    os.execv(sys.argv[1], sys.argv[1:])
"""
PENSTOCK = ("-c", "from penstock.cli import main; main()")
ROWS, COLUMNS = 40, 120


class Terminal:
    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, sys.executable, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"} | environ,
        )
        os.close(slave)
        self._written = b""

    @property
    def written(self) -> str:
        """All that was sent to it, as it was sent."""
        self._read(0)
        return self._written.decode(errors="replace").replace("\r\n", "\n")

    @property
    def shown(self) -> str:
        """The same without colours; where a line is erased to be drawn anew, there is a new one."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", re.sub(r"\x1b\[2K", "\n", self.written))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, words: str, seconds: float = 60) -> str:
        """Wait until this is shown."""
        return self.until_match(re.escape(words), seconds)

    def until_match(self, pattern: str, seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end, f"{pattern!r} is not in {self.shown[-3000:]}"
            if not self._read(0.1):
                running = self.process.poll() is None
                assert running or re.search(pattern, self.shown), self.shown[-3000:]
        return self.shown

    def until_hidden(self, seconds: float = 60) -> None:
        """Wait until what is typed is not shown: what was typed before is thrown away then."""
        end = time.monotonic() + seconds
        while termios.tcgetattr(self._master)[3] & termios.ECHO:
            assert time.monotonic() < end, self.shown[-3000:]
            time.sleep(0.01)

    def interrupt(self) -> int:
        """Press Ctrl-C, again and again: Python's `input` misses one that comes just before it reads."""
        for _ in range(30):
            self.type("\x03")
            with suppress(AssertionError):
                return self.ended(2)
        return self.ended(0)

    def forget(self) -> None:
        self._written = b""

    def ended(self, seconds: float = 60) -> int:
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, self.shown[-3000:]
            self._read(0.1)
        self._read(0)
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        read = False
        while select.select([self._master], [], [], 0 if read else seconds)[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # nobody has the other end open any more
                return False
            self._written += chunk
            read = True
        return read

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def in_terminal(folder: Path, *arguments: str, **environ: str) -> Iterator[Terminal]:
    """Python, with these arguments."""
    terminal = Terminal(folder, *arguments, **environ)
    try:
        yield terminal
    finally:
        terminal.close()

"""Mirrors as processes that can be killed, each there in a few milliseconds: forked off one that has imported
all that they need.

    python -m tests.consumer.forking SERVER PASSWORD ENCODING FILE

starts a mirror for each line that it reads, writes its process id, and ends with its input. What mirrors tell
is added to FILE.notes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.consumer import ConsumerAccess, Mirror
from penstock.embedded.nats import USER


class MirrorProcesses:
    def __init__(self, access: ConsumerAccess, path: Path) -> None:
        arguments = [access.servers[0], access.password or "", access.encoding, str(path)]
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.consumer.forking", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._child = 0

    def start(self) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write("start\n")
        self._parent.stdin.flush()
        self._child = int(self._parent.stdout.readline())

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._child = 0

    def close(self) -> None:
        self.kill()
        self._parent.communicate()


def _main() -> None:
    import numpy  # noqa: F401

    server, password, encoding, path = sys.argv[1:]
    access = ConsumerAccess((server,), USER, password, encoding="json" if encoding == "json" else "msgpack")
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            with Path(f"{path}.notes").open("a", buffering=1) as notes:
                mirror = Mirror(access, Path(path), note=lambda text: print(text, file=notes))
                asyncio.run(mirror.run())
        print(child, flush=True)


if __name__ == "__main__":
    _main()

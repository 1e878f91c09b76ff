"""`python -m penstock.capture`: a capture in a process of its own, as `launch.start` begins it.

The specification comes as one line of JSON on standard input. When standard input ends, whoever started
the capture is gone or wants it to stop, and it stops in good order. An error that ends it goes to standard
output as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from importlib.abc import MetaPathFinder

from penstock import logs
from penstock.capture.spec import CaptureSpec
from penstock.model import children
from penstock.model.errors import PenstockError, to_dict


class WithoutPandas(MetaPathFinder):
    """pyarrow imports pandas with its first array, where it is installed: 45 MB and 0.3 s for nothing."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def main() -> int:
    sys.meta_path.insert(0, WithoutPandas())
    os.umask(0o077)  # files of this process and of its children are for their owner alone
    logs.to_stderr()
    spec = CaptureSpec.from_json(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    with children.importing():
        from penstock.capture.process import Capture

    try:
        Capture(spec, stop).run()
    except PenstockError as error:
        print(json.dumps(to_dict(error)), flush=True)
        return 1
    return 0


def _wait_for_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    sys.exit(main())

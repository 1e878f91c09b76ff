"""The spool that a query reads, and the capture that fills it.

With the option `spool` the folder is given and somebody else captures. With `config` the configuration names
it, and the query sees to it that somebody captures for as long as it runs. Used beside the driver only: what
capture needs to know includes the password.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path

from penstock.capture.spec import CaptureSpec
from penstock.spark.options import Options
from penstock.spool.manifest import Manifest

INTERVAL = 1.0
"""Seconds between two looks at the capture."""


class Feed:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._looked = 0.0

    @cached_property
    def _spec(self) -> CaptureSpec | None:
        return self._options.capture_spec()

    @property
    def path(self) -> Path:
        if self._spec is not None:
            return self._spec.spool
        assert self._options.spool is not None
        return self._options.spool

    def open(self) -> Manifest:
        self.look_after()
        return Manifest.open(self.path)

    def look_after(self) -> bool:
        """Now and then: see to it that somebody captures; raises what keeps capture from going on.

        Says whether it was time to look.
        """
        if time.monotonic() - self._looked < INTERVAL:
            return False
        self._looked = time.monotonic()
        if self._spec is not None and self._options.capture:
            from penstock.capture import launch

            launch.ensure(self._spec)
        return True

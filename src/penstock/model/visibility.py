"""What a snapshot of PostgreSQL contains, decided by transaction.

A change is in a copy exactly when its transaction is visible in the copy's snapshot. Positions do not decide
that: a transaction whose commit is in the WAL already may not be visible yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_WRITTEN = re.compile(r"[0-9]{1,19}:[0-9]{1,19}:([0-9]{1,19}(,[0-9]{1,19})*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Visibility:
    """`pg_current_snapshot()`: all below `xmin` are visible, none from `xmax` on, and none of `running`."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read `xmin:xmax:xip,xip,…`, with ids that are not cut to 32 bits; ValueError for anything else."""
        if not _WRITTEN.fullmatch(text):
            raise ValueError("expected xmin:xmax:xip,xip,…")
        xmin, xmax, running = text.split(":")
        read = cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))
        if not 0 < read.xmin <= read.xmax < 1 << 63 or not all(
            read.xmin <= xid < read.xmax for xid in read.running
        ):
            raise ValueError("expected running transactions between xmin and xmax")
        return read

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these committed transactions are visible. Ids have 32 bits in the stream: of those
        that are meant, each is the one nearest to `xmax`."""
        distance = (xids - (self.xmax & 0xFFFFFFFF)) & 0xFFFFFFFF
        full = self.xmax + np.where(distance < 1 << 31, distance, distance - (1 << 32))
        running = np.isin(full, np.array(self.running, np.int64))
        seen: npt.NDArray[np.bool_] = (full < self.xmax) & ~running
        return seen

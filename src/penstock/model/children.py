"""Processes of ours: what they are given when they are started, and how they begin quickly."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_SAVING = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy starts a thread for each core when it is imported, which waits busily: 0.1 s of CPU. Nobody of ours
multiplies matrices."""


def environment(withheld: Collection[str]) -> dict[str, str]:
    """Return this process's variables for a child, without those that hold secrets it has no need of."""
    return _SAVING | {name: value for name, value in os.environ.items() if name not in withheld}


@contextmanager
def importing() -> Iterator[None]:
    """Keep the garbage collector away from modules, while they are imported and ever after: there is no
    garbage among them, and to look for it takes a quarter of a process's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

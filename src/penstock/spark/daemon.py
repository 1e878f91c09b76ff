"""pyspark's daemon of Python workers, without a traceback where nothing is wrong.

A worker whose task Spark has done with may still be writing its last bytes: a broken pipe, which the daemon
prints to the terminal at length, now and then, at the end of a batch or of the session. The worker ends and
another takes its place; everything else is printed as ever.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from typing import Any

from pyspark.daemon import manager

from penstock.model import children

PRELOAD = "PENSTOCK_PRELOAD"
"""The environment's variable that names modules, by `spark.executorEnv`."""

_print_exc = traceback.print_exc


def print_unless_pipe_broke(*arguments: Any, **options: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc(*arguments, **options)


def preload() -> None:
    """Import what tasks will need, and load compiled code, once, before workers are forked off; and
    leave their garbage collector, which runs after every task, nothing to look through but what they make
    themselves: it took a fifth of a copy's time."""
    with children.importing():
        for name in os.environ.get(PRELOAD, "").split():
            module = import_module(name)
            if hasattr(module, "warm_up"):
                module.warm_up()


if __name__ == "__main__":
    preload()
    traceback.print_exc = print_unless_pipe_broke
    manager()

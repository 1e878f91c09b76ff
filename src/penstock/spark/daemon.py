"""pyspark's daemon of Python workers, without a traceback where nothing is wrong.

A worker whose task Spark has done with may still be writing its last bytes: a broken pipe, which the daemon
prints to the terminal at length, now and then, at the end of a batch or of the session. The worker ends and
another takes its place; everything else is printed as ever.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pyspark.daemon import manager

_print_exc = traceback.print_exc


def print_unless_pipe_broke(*arguments: Any, **options: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        _print_exc(*arguments, **options)


if __name__ == "__main__":
    traceback.print_exc = print_unless_pipe_broke
    manager()

"""`python -m tests.files.killed CONFIG POINT`: a pipeline that is killed when it comes to a point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.config import load
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.files.full_copy import Sheet
from penstock.destinations.files.reloading import FilesReloading
from penstock.destinations.files.target import FilesTarget
from penstock.model.ddl import END, START
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.table_reloads import TableReloads


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, own: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> None:

    def dying(self: Any, *given: Any) -> Any:
        if when(*given):
            die()
        return own(self, *given)

    setattr(owner, own.__name__, dying)


def after(owner: type, own: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> None:

    def dying(self: Any, *given: Any) -> Any:
        said = own(self, *given)
        if when(*given):
            die()
        return said

    setattr(owner, own.__name__, dying)


def has(action: str) -> Callable[[ChangeBatch], bool]:
    return lambda batch: any(marker.action == action for marker in batch.markers)


POINTS: dict[str, Callable[[], None]] = {
    "before START": lambda: before(FilesTarget, FilesTarget.write, has(START)),
    "after START, before the export": lambda: before(FilesReloading, FilesReloading.begin),
    "when the export is to begin": lambda: after(FilesReloading, FilesReloading.begin),
    "during the export": lambda: before(Sheet, Sheet.finish),
    "after the export, before END": lambda: before(TableReloads, TableReloads._end),
    "after END": lambda: after(FilesTarget, FilesTarget.write, has(END)),
}


if __name__ == "__main__":
    POINTS[sys.argv[2]]()
    Pipeline(load(Path(sys.argv[1]))).run()

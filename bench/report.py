"""What benchmarks have in common: measuring two sides in turn, the table, the JSON.

Both sides run alternately, so that whatever else the machine does hits both, and the median counts. A side
is a function that runs once and returns how it did: a rate (more is better) or a duration (less is).
"""

from __future__ import annotations

import gc
import json
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

ROUNDS = 3
Side = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    case: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    """Ours over theirs."""
    peak_memory_mb: float
    """Of our side."""
    against: str
    notes: tuple[str, ...] = ()
    """What else there is to know, such as where the time went: lines below the table."""

    @property
    def less_is_better(self) -> bool:
        """Units of time: `s`, `ms`, `s CPU/min`."""
        return self.unit.split(" ")[0] in ("s", "ms")


def compare(
    case: str,
    against: str,
    ours: Side,
    theirs: Side,
    *,
    unit: str = "rows/s",
    memory: Callable[[], float] = lambda: peak_memory_mb(),
) -> Case:
    """Run both sides in turn. With a unit of time (`s`, `ms`) less is better.

    `memory` tells the peak of our last run where that was in another process than this.
    """
    peak = 0.0

    def measured() -> float:
        nonlocal peak
        reset_peak_memory()
        figure = ours()
        peak = max(peak, memory())
        return figure

    mine, other = map(median, alternate(measured, theirs))
    return Case(case, mine, other, unit, mine / other, round(peak, 1), against)


def alternate(*sides: Callable[[], T]) -> list[list[T]]:
    """Run the sides in turn; for each what its runs returned."""
    results: list[list[T]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, returned in zip(sides, results, strict=True):
            returned.append(side())
    return results


def rate(count: int, work: Callable[[], object]) -> float:
    """How many a second, when the work is about `count` of them."""
    gc.collect()
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def reset_peak_memory() -> None:
    """Start counting this process's peak memory anew (Linux; elsewhere it is the peak since the start)."""
    gc.collect()
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def peak_memory_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def show(name: str, title: str, cases: Iterable[Case], console: Console) -> list[Case]:
    """Print the table of a benchmark, and return its cases. If one fails, those before it are still shown."""
    done: list[Case] = []
    try:
        done.extend(cases)
    finally:
        console.print(_table(f"{name}: {title}", done))
        for case in done:
            for note in case.notes:
                console.print(f"{case.case}: {note}", markup=False, highlight=False, soft_wrap=True)
    return done


def _table(title: str, cases: Iterable[Case]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("case", "ours", "theirs", "unit", "ours / theirs", "our peak MB", "against"):
        table.add_column(heading, justify="left" if heading in ("case", "unit", "against") else "right")
    for case in cases:
        ratio = f"{case.ratio:.2f}{' (less is better)' if case.less_is_better else ''}"
        table.add_row(
            case.case, _figure(case.ours), _figure(case.theirs), case.unit, ratio,
            f"{case.peak_memory_mb:.0f}", case.against,
        )  # fmt: skip
    return table


def to_json(name: str, cases: Iterable[Case]) -> str:
    return json.dumps({"name": name, "cases": [asdict(case) for case in cases]})


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

"""What processes use while a side runs: CPU seconds and memory, by part.

A thread looks at the processes four times a second. Between two looks a process that ends takes up to a
quarter of a second of CPU with it unseen: enough to say where the time goes, not to bill it. Memory is
resident size, summed over the processes of a part; pages that forked workers share count in each of them.

What the benchmark does itself at the servers, under a role of its own, is left out.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.servers import ROLE, Servers

INTERVAL = 0.25
OURS = ("driver", "Spark JVM", "capture", "Python workers", "HTTP")

Parts = Iterator[tuple[str, psutil.Process]]
"""Processes, each with the part that it belongs to."""


@dataclass(slots=True)
class Usage:
    """By part: CPU seconds within the time looked at, and the peak of memory in MB."""

    cpu: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    ours_peak_mb: float = 0.0
    """Of all our processes at one moment."""

    @property
    def cpu_seconds(self) -> float:
        """Of everything but what the servers do in any case."""
        return sum(seconds for part, seconds in self.cpu.items() if part != BACKGROUND)

    def cpu_line(self, times: float = 1.0) -> str:
        parts = sorted(((part, seconds * times) for part, seconds in self.cpu.items()), key=lambda p: -p[1])
        said = ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts if seconds >= 0.05)
        return said or "too few to see"

    def memory_line(self) -> str:
        return ", ".join(f"{part} {self.memory[part]:.0f}" for part in OURS if part in self.memory)


BACKGROUND = "servers' background"


@contextmanager
def watched(servers: Servers, pipeline: int | None = None, others: Mapping[str, int] = {}) -> Iterator[Usage]:
    """What is used inside of the block; complete when that is over. `others`: processes that are a part of
    their own, by its name."""
    watch = _Watch(lambda: _parts(servers, pipeline, others))
    watch.look()
    thread = threading.Thread(target=watch.go_on, daemon=True)
    thread.start()
    try:
        yield watch.usage
    finally:
        watch.over.set()
        thread.join()
        watch.look()


class _Watch:
    def __init__(self, parts: Callable[[], Parts]) -> None:
        self.usage = Usage()
        self.over = threading.Event()
        self._parts = parts
        self._seen: dict[tuple[int, float], float] = {}
        self._begun = False

    def go_on(self) -> None:
        while not self.over.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        resident: dict[str, float] = defaultdict(float)
        for part, process in self._parts():
            try:
                with process.oneshot():
                    self._count(part, process)
                    resident[part] += process.memory_info().rss / 1e6
            except psutil.Error:
                continue  # it has ended
        self._begun = True
        self._remember(resident)

    def _count(self, part: str, process: psutil.Process) -> None:
        """What a process had used when we began is not ours; one that came later began with nothing."""
        used = _cpu_seconds(process)
        which = process.pid, process.create_time()
        before = self._seen.get(which, 0.0 if self._begun else used)
        self.usage.cpu[part] = self.usage.cpu.get(part, 0.0) + used - before
        self._seen[which] = used

    def _remember(self, resident: Mapping[str, float]) -> None:
        peaks = self.usage.memory
        for part, megabytes in resident.items():
            peaks[part] = max(peaks.get(part, 0.0), megabytes)
        self.usage.ours_peak_mb = max(self.usage.ours_peak_mb, sum(resident.get(part, 0.0) for part in OURS))


def _cpu_seconds(process: psutil.Process) -> float:
    """To a hundredth of a second; or to the nanosecond, for a process that has one thread."""
    exact = Path(f"/proc/{process.pid}/schedstat")
    if process.num_threads() == 1 and exact.exists():
        with contextlib.suppress(OSError):
            return int(exact.read_text().split()[0]) / 1e9
    times = process.cpu_times()
    return times.user + times.system


def time_and_memory(ours: Sequence[Usage], theirs: Sequence[Usage]) -> tuple[str, ...]:
    """Where the time went on both sides, and what memory each of our processes took: of the last runs."""
    return (
        f"our CPU seconds: {ours[-1].cpu_line()}",
        f"their CPU seconds: {theirs[-1].cpu_line()}",
        f"our peak MB: {ours[-1].memory_line()}",
    )


def _parts(servers: Servers, pipeline: int | None, others: Mapping[str, int]) -> Parts:
    for part, pid in others.items():
        yield part, psutil.Process(pid)
    if pipeline is not None:
        yield from _pipeline_parts(pipeline)
    for name, server in (("source", servers.source), ("destination", servers.destination)):
        postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
        for process in psutil.Process(postmaster).children():
            server_part = _server_part(name, _command(process))
            if server_part:
                yield server_part, process


def _pipeline_parts(pid: int) -> Parts:
    try:
        driver = psutil.Process(pid)
        yield "driver", driver
        for process in driver.children(recursive=True):
            yield _pipeline_part(_command(process)), process
    except psutil.Error:
        return  # it has ended, or one of its children has, between two questions


def _pipeline_part(command: str) -> str:
    program = Path(command.split(" ")[0]).name
    if program == "java":
        return "Spark JVM"
    named = {"penstock.capture": "capture", "penstock.monitoring": "HTTP"}
    return next((part for module, part in named.items() if module in command), "Python workers")


def _server_part(server: str, title: str) -> str | None:
    """From a title such as `postgres: walsender postgres source 127.0.0.1(4242) START_REPLICATION`."""
    words = title.removeprefix("postgres: ")
    if words.startswith((f"{ROLE} ", f"walsender {ROLE} ")):
        return None
    if words.startswith("walsender "):
        return "walsender"
    if words.startswith("logical replication ") and " worker for " in words:
        return "subscription workers"
    return f"{server}'s backends" if words.startswith(("postgres ", "parallel worker ")) else BACKGROUND


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""

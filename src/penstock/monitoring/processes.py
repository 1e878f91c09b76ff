"""The processes of a pipeline and what they hold of the memory, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory(pipeline: int | None) -> dict[str, int]:
    """Return the resident bytes of the pipeline's processes, by what they are."""
    held: dict[str, int] = {}
    if pipeline is None or not PROC.exists():
        return held
    children = _children()
    waiting = [pipeline]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        size = _resident(pid)
        if size is not None:
            what = "driver" if pid == pipeline else _kind(pid)
            held[what] = held.get(what, 0) + size
    return held


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    return children


def _parents() -> Iterator[tuple[int, int]]:
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(errors="replace")
            except OSError:
                continue  # it has just ended
            yield int(folder.name), int(stat.rpartition(")")[2].split()[1])


def _resident(pid: int) -> int | None:
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return None


def _kind(pid: int) -> str:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "other"
    for word, kind in (
        ("penstock.capture", "capture"),
        ("penstock.monitoring", "monitoring"),
        ("penstock.spark.daemon", "workers"),
        ("pyspark.daemon", "workers"),
    ):
        if word in command:
            return kind
    return "jvm" if Path(command[0]).name == "java" else "other"

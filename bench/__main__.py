"""python -m bench [NAME] [--json] [--rows N]"""

from __future__ import annotations

import argparse
import pkgutil
import signal
import sys
from importlib import import_module

from rich.console import Console

import bench
from bench.report import show, to_json

NOT_BENCHMARKS = {
    "__main__", "backlog", "http_load", "jdbc", "looks", "pipeline", "raw_nats", "report", "rows", "servers",
    "subscription", "turns", "usage",
}  # fmt: skip
"""What benchmarks have in common."""


def names() -> list[str]:
    """Every module of this folder is a benchmark."""
    return sorted(
        module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in NOT_BENCHMARKS
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock's benchmarks.")
    parser.add_argument("name", nargs="?", choices=names(), help="one of them; all without it")
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark, last")
    parser.add_argument("--rows", type=int, help="the size of each case, for a quick or a long run")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = []
    for name in [chosen.name] if chosen.name else names():
        module = import_module(f"bench.{name}")
        title = (module.__doc__ or "").strip().splitlines()[0]
        results.append(to_json(name, show(name, title, module.cases(chosen.rows), console)))
    if chosen.json:
        print(*results, sep="\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and pipelines are taken down
    sys.exit(main(sys.argv[1:]))

"""The few lines that `run`, `status --watch` and the demo redraw."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from penstock.cli.overview import MOST_COPIES, heading, overview

ERROR = {"reason": "no\x1b[2J", "remedy": "Mend it", "where": {"table": "t"}}
STREAM = {
    "source": "eu",
    "lag_bytes": 2100,
    "lag_seconds": 0.4,
    "rows": 10233,
    "batches": 102,
    "error": None,
    "rates": {"rows": 1236.0},
}
SOURCE = {
    "name": "eu",
    "error": None,
    "slot_state": "active",
    "behind_bytes": 0,
    "retained_bytes": 16_000_000,
    "rates": {"changes": 1240.0},
    "capture": {"spooled_bytes": 34, "error": None},
}


def table(name: str, phase: str, done: int | None = None, error: Any = None) -> dict[str, Any]:
    copy = None if done is None else {"bytes": done, "total_bytes": 1000, "seconds_left": 75.0}
    return {"table": name, "phase": phase, "copy": copy, "error": error}


def shown(*tables: dict[str, Any], **changed: Any) -> str:
    document = {
        "sources": [SOURCE | changed],
        "destinations": [{"name": "files", "streams": [STREAM], "tables": list(tables)}],
    }
    console = Console(file=io.StringIO(), width=100, highlight=False)
    with console.capture() as captured:
        console.print(overview(document, heading("shop", "runs", "http://h/"), "a note"))
    return captured.get()


def test_everything_has_its_line() -> None:
    assert shown(table("a", "ready"), table("b", "ready"), table("c", "data_sync", 630)).splitlines() == [
        "shop runs   http://h/",
        "eu: 1,240 changes/s, 0 B behind, 16.0 MB of WAL kept, 34 B in the spool",
        "eu → files: 1,236 changes/s, 2.1 kB and 0.4 s behind, 10,233 changes in 102 batches",
        "  1 data sync, 2 ready",
        "  c ━━━━━━━━━━━━━━━ 63 % 630 B of 1.0 kB, 1 min 15 s left".replace("━" * 15, "━" * 15 + " " * 10),
        "a note",
    ]


def test_what_cannot_be_reached_says_why() -> None:
    assert "eu: no\\x1b[2J (table t). Mend it." in shown(error=ERROR)
    assert "eu: no slot yet" in shown(slot_state="missing")


def test_a_thousand_tables_stay_a_few_lines() -> None:
    copies = [table(f"c{number}", "data_sync", number) for number in range(500)]
    stopped = [table(f"e{number}", "errored", error=ERROR) for number in range(500)]
    lines = shown(*copies, *stopped).splitlines()
    assert len(lines) < 25
    assert f"  and {500 - MOST_COPIES} more" in [line.rstrip() for line in lines]
    assert "  500 errored, 500 data sync" in lines
    assert "\x1b" not in "".join(lines)

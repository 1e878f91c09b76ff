"""SQLite between processes."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from penstock.model.sqlite import make_durable


def test_who_opens_a_new_database_waits_for_who_makes_it(tmp_path: Path) -> None:
    """To switch it to the log is refused at once while somebody writes, whatever the timeout."""
    file = tmp_path / "new.db"
    maker = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    maker.execute("begin immediate")
    made = threading.Timer(0.3, maker.execute, ["commit"])
    made.start()
    other = sqlite3.connect(file)
    make_durable(other)
    made.join()
    assert other.execute("pragma journal_mode").fetchone() == ("wal",)

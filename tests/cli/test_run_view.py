"""`penstock run` on a terminal: the log, and the pipeline below it; elsewhere the log alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import Database
from tests.cli.terminal import PENSTOCK, in_terminal
from tests.pipeline.running import configuration

HELD = """
import pathlib, time
from penstock.destinations.memory import Memory

class Held(Memory):
    def write_table_rows(self, table, rows):
        while table.name.name == "big" and not pathlib.Path("seen").exists():
            time.sleep(0.05)
        super().write_table_rows(table, rows)
"""
LINE = re.compile(r"(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \[(info|warning|error) *\] ")


@pytest.mark.usefixtures("silent_java")
def test_who_watches_a_pipeline_sees_it_below_its_log(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table big (id int primary key, t text)",
        "insert into big select g, repeat('x', 1000) from generate_series(1, 6000) g",
        "create table refused (id int primary key)",
    )
    (tmp_path / "held.py").write_text(HELD)
    to = {"name": "there", "type": "python", "class": "held.Held"}
    file = configuration(tmp_path, database, to, monitoring={"port": 0}, copy={"partition_mb": 1})
    with in_terminal(tmp_path, *PENSTOCK, "run", str(file), PENSTOCK_MONITORING__ENABLED="true") as terminal:
        terminal.until("test is starting")
        terminal.until("source: no slot yet")
        terminal.until_match(r"public\.big +[━╸ ]+ +\d+ % ", 240)
        (tmp_path / "seen").touch()
        terminal.until("2 ready", 240)
        assert "http://127.0.0.1:" in terminal.until("test runs, ")
        database.execute("insert into refused select generate_series(1, 5000)")
        terminal.until("source → there:")
        terminal.until("5,000 changes in ")
        terminal.forget()
        terminal.type("\x03")
        terminal.until("is stopping")
        terminal.until("Ctrl-C once more insists")
        assert terminal.ended() == 0
        assert len(re.findall(r"(?m)^20.*stopping: batches at hand", terminal.shown)) == 1
        assert terminal.written.count("\x1b[?25h") == 1  # the cursor is back
        assert "METRICS" not in terminal.shown
        assert "Traceback" not in terminal.shown


@pytest.mark.usefixtures("silent_java")
def test_an_error_is_told_below_all_when_the_view_is_gone(database: Database, tmp_path: Path) -> None:
    """And the same without a terminal, or with `--plain`, is lines of the log alone."""
    to = {"name": "d", "type": "postgres", "dsn": database.dsn, "tables": {"public.nowhere": {"drop": ["a"]}}}
    file = configuration(tmp_path, database, to)
    with in_terminal(tmp_path, *PENSTOCK, "run", str(file)) as terminal:
        assert terminal.ended() == 2
        assert "test is starting" in terminal.shown
        last = terminal.shown.rstrip().rpartition("\n")[2]
        assert last.startswith("error: ")
        assert "public.nowhere" in last
    with in_terminal(tmp_path, *PENSTOCK, "run", "--plain", str(file)) as terminal:
        assert terminal.ended() == 2
        assert terminal.shown.startswith("error: ")
    done = subprocess.run(
        [sys.executable, *PENSTOCK, "run", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")

"""`penstock status`, for people, pipes and programs; and `penstock check` where there is nothing to see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from penstock.cli.status_report import show_destination
from penstock.model import TableId, TableName
from penstock.model.phases import Phase
from penstock.state.store import Store, TableKey, TableState
from tests.bed import Database
from tests.cli.terminal import PENSTOCK, in_terminal

UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""For root, what everybody else has anyway: permissions hold."""

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""The cursor of a terminal."""


def penstock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*UNPRIVILEGED, sys.executable, "-c", "from penstock.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)


def configured(folder: Path, database: Database, **sections: Any) -> None:
    document = {"pipeline": "shop", "sources": [{"name": "eu", "dsn": database.dsn}], **sections}
    (folder / "shop.yml").write_text(yaml.safe_dump(document))


def test_who_only_looks_makes_nothing(database: Database, tmp_path: Path) -> None:
    configured(tmp_path, database)
    done = penstock(tmp_path, "status", "shop.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("shop does not run\nnothing was started yet\nsource eu: slot ")
    found = json.loads(penstock(tmp_path, "status", "shop.yml", "--json").stdout)
    assert (found["running"], found["destinations"]) == (None, [])
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yml"]


def test_a_spool_that_we_may_not_enter_is_one_failed_check(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    configured(tmp_path, database, state={"url": f"sqlite:///{tmp_path}/state.db"})
    (tmp_path / ".penstock").mkdir(0o000)
    done = penstock(tmp_path, "check", "shop.yml", "--json")
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [check for check in checks if check["outcome"] == "failure"]
    assert (done.returncode, done.stderr, [check["name"] for check in failed]) == (1, "", ["spool"])
    assert "may not enter its folder" in failed[0]["detail"]
    assert {"state store", "wal_level"} <= {check["name"] for check in checks}


def test_who_is_not_strict_is_not_told_to_be_so(database: Database, tmp_path: Path) -> None:
    to = {"name": "d", "type": "postgres", "dsn": database.dsn, "tables": {"public.nowhere": {"drop": ["a"]}}}
    for strict in (True, False):
        configured(tmp_path, database, destinations=[to | {"strict": strict}])
        done = penstock(tmp_path, "check", "shop.yml")
        assert "Correct `tables` of the destination" in done.stdout
        assert ("set `strict: false`" in done.stdout) is strict


def test_a_remedy_ends_in_a_stop() -> None:
    error = {"reason": "no", "remedy": "Mend it", "where": {}}
    table = {"source": "eu", "table": "t", "target": "t", "phase": "errored", "since": "", "rows": 0}
    states = [table | {"copy": None, "error": error, "retry_at": "noon"}]
    printed = StringIO()
    show_destination(Console(file=printed), {"streams": [], "tables": states})
    assert "t: no. Mend it. Tried again at noon." in printed.getvalue()


LONG = "a_table_with_a_name_of_sixty_characters_" + "x" * 20


def copying(folder: Path, database: Database) -> None:
    """A pipeline in the midst of its copies, as its state has it."""
    to = {"name": "d", "type": "postgres", "dsn": database.dsn}
    configured(folder, database, destinations=[to])
    with Store.open(f"sqlite:///{folder}/.penstock/state.db", "shop", exclusive=True) as store:
        for number, (name, phase) in enumerate({LONG: Phase.DATA_SYNC, "small": Phase.READY}.items(), 1):
            table = TableName("public", name)
            key = TableKey("eu", "d", TableId(number))
            store.put(
                TableState(
                    key, table, table, phase, datetime.now(UTC), rows=12345, copied_bytes=63, total_bytes=100
                )
            )


def test_in_a_pipe_a_table_is_a_line_that_is_not_cut_off(database: Database, tmp_path: Path) -> None:
    copying(tmp_path, database)
    done = penstock(tmp_path, "status", "shop.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if "public." in line]
    columns = next(line for line in done.stdout.splitlines() if line.startswith("source  ")).split()
    assert columns == ["source", "table", "target", "phase", "since", "copied", "rows", "progress"]
    name = f"public.{LONG}"
    assert [line[:4] for line in lines] == [
        ["eu", name, name, "data_sync"],
        ["eu", "public.small", "public.small", "ready"],
    ]
    assert lines[0][5:10] == ["12,345", "63", "B", "of", "100"]
    assert lines[1][5:] == ["12,345", "-"]
    assert len(lines[1][4]) == len("2026-01-31T12:00:00")


def test_a_watched_status_is_redrawn_and_left_quietly(database: Database, tmp_path: Path) -> None:
    copying(tmp_path, database)
    with in_terminal(tmp_path, *PENSTOCK, "status", "--watch", "0.3", "shop.yml") as terminal:
        terminal.until("1 data sync, 1 ready")
        assert "every 0.3 s; Ctrl-C leaves" in terminal.shown
        assert "63 %" in terminal.shown
        with Store.open(f"sqlite:///{tmp_path}/.penstock/state.db", "shop", exclusive=True) as store:
            for state in store.tables():
                store.put(TableState(state.key, state.name, state.target, Phase.READY, state.since))
            terminal.until("2 ready")
        sessions = "select pid from pg_stat_activity where application_name = 'penstock' and datname = %s"
        before = database.query(sessions, database.name)
        terminal.forget()
        terminal.until("2 ready")  # drawn again
        assert len(before) == 1
        assert database.query(sessions, database.name) == before
        terminal.forget()
        terminal.type("\x03")
        assert terminal.ended() == 0
        assert "Traceback" not in terminal.shown
        assert "rror" not in terminal.shown


def test_a_watched_status_sees_a_pipeline_begin(database: Database, tmp_path: Path) -> None:
    to = {"name": "d", "type": "postgres", "dsn": database.dsn}
    configured(tmp_path, database, destinations=[to])
    with in_terminal(tmp_path, *PENSTOCK, "status", "shop.yml", "--watch=0.3") as terminal:
        terminal.until("nothing was started yet")
        copying(tmp_path, database)
        terminal.until("1 data sync, 1 ready")


def test_a_watched_status_that_is_ended_gives_the_cursor_back(database: Database, tmp_path: Path) -> None:
    copying(tmp_path, database)
    with in_terminal(tmp_path, *PENSTOCK, "status", "shop.yml", "--watch", "0.3") as terminal:
        terminal.until("1 ready")
        assert HIDDEN in terminal.written
        terminal.process.terminate()
        assert terminal.ended() == 0
        assert terminal.written.rindex(SHOWN) > terminal.written.rindex(HIDDEN)


def test_looks_in_a_pipe_follow_each_other(database: Database, tmp_path: Path) -> None:
    copying(tmp_path, database)
    command = [sys.executable, *PENSTOCK, "status", "shop.yml", "--json", "--watch", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    assert first["at"] < second["at"]
    assert [table["phase"] for table in second["destinations"][0]["tables"]] == ["data_sync", "ready"]


def test_what_cannot_be_seen_is_told_and_looked_for_again(database: Database, tmp_path: Path) -> None:
    """The store is no store for a while."""
    copying(tmp_path, database)
    state = tmp_path / ".penstock" / "state.db"
    kept = state.read_bytes()
    for more in tmp_path.glob(".penstock/state.db-*"):
        more.unlink()
    state.write_bytes(b"not a database" * 100)
    with in_terminal(tmp_path, *PENSTOCK, "status", "shop.yml", "--watch", "0.3") as terminal:
        terminal.until("file is not a database")
        terminal.until("and a new copy")  # the remedy, on the next line
        state.write_bytes(kept)
        terminal.until("1 ready")

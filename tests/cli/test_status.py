"""`penstock status` and `penstock check` where there is nothing yet, or nothing that we may see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from penstock.cli.status import _show_destination
from tests.bed import Database

UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""For root, what everybody else has anyway: permissions hold."""


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
    _show_destination(Console(file=printed), {"streams": [], "tables": states})
    assert "t: no. Mend it. Tried again at noon." in printed.getvalue()

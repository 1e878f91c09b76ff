"""`penstock tail`, as it is run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.capture.launch import spec_of
from penstock.config import load
from penstock.postgres.publication import MARK
from tests.bed import Database
from tests.capture.running import eventually, running

TAIL = [sys.executable, "-c", "from penstock.cli import main; main()", "tail"]


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Path:
    database.execute(
        "create table users (id int primary key, name text)", "create table other (id int primary key)"
    )
    path = tmp_path / "shop.yml"
    path.write_text(
        f"pipeline: shop\nspool: {{path: {tmp_path}/spool}}\n"
        f"sources:\n  - name: eu\n    dsn: {database.dsn}\n"
    )
    return path


class Tail:
    def __init__(self, *arguments: object) -> None:
        self._child = subprocess.Popen(
            [*TAIL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._child.stderr is not None
        self.said = self._child.stderr.readline()

    def finish(self, *, interrupt: bool = False) -> tuple[int, list[str], str]:
        if interrupt:
            self._child.send_signal(signal.SIGINT)
        printed, complained = self._child.communicate(timeout=60)
        return self._child.returncode, printed.splitlines(), complained


def left_behind(database: Database) -> list[tuple[str]]:
    return database.query(
        "select slot_name from pg_replication_slots where database = current_database()"
        " union all select pubname from pg_publication"
    )


def test_changes_are_printed_as_they_happen_and_nothing_is_left(database: Database, config: Path) -> None:
    tail = Tail(config, "--json", "--limit", 3, "--table", "users")
    assert "temporary slot" in tail.said
    database.execute(
        "insert into users values (1, 'Ada'), (2, null)",
        "insert into other values (1)",
        "delete from users where id = 1",
    )
    code, lines, _ = tail.finish()
    assert code == 0
    found = [json.loads(line) for line in lines]
    assert [(change["op"], change["before"], change["after"]) for change in found] == [
        ("insert", None, {"id": "1", "name": "Ada"}),
        ("insert", None, {"id": "2", "name": None}),
        ("delete", {"id": "1"}, None),
    ]
    assert {change["table"] for change in found} == {"public.users"}
    eventually(lambda: not left_behind(database))


def test_ctrl_c_ends_it_quietly(database: Database, config: Path) -> None:
    tail = Tail(config)
    database.execute("insert into users values (1, 'Ada')")
    code, _, complained = tail.finish(interrupt=True)
    assert (code, complained) == (130, "")
    eventually(lambda: not left_behind(database))


def test_a_running_capture_is_followed_without_taking_part(database: Database, config: Path) -> None:
    loaded = load(config)
    spec = spec_of(loaded, loaded.source())
    database.execute(f'create publication "{spec.publication}" for table users')
    with running(spec) as capture:
        capture.until_state("streaming")
        tail = Tail(config, "--limit", 1)
        assert "following the running capture" in tail.said
        database.execute("insert into users values (7, 'Grace')")
        code, lines, _ = tail.finish()
    assert code == 0
    assert lines[0].endswith("public.users id=7 name=Grace")
    assert left_behind(database) == [(spec.slot,), (spec.publication,)]


def test_an_unreachable_server_is_said_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "shop.yml"
    config.write_text(
        "pipeline: shop\nsources:\n  - name: eu\n    dsn: postgresql://cdc:hush@127.0.0.1:1/shop\n"
    )
    tail = Tail(config)
    code, lines, complained = tail.finish()
    assert (code, lines, complained) == (1, [], "")
    assert tail.said.startswith("error: ")
    assert "hush" not in tail.said


def test_it_ends_at_once_also_while_an_older_transaction_keeps_it_from_beginning(
    database: Database, config: Path
) -> None:
    """The server makes no slot before those transactions have ended that write."""
    waiting = """
        select 1 from pg_stat_activity
        where backend_type = 'walsender' and datname = current_database() and wait_event_type = 'Lock'
    """
    with database.connect() as older, older.transaction():
        older.execute("insert into other values (1)")
        child = subprocess.Popen([*TAIL, str(config)], stderr=subprocess.PIPE, text=True)
        try:
            eventually(lambda: database.query(waiting), seconds=60)
            below = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
            child.send_signal(signal.SIGTERM)
            _, complained = child.communicate(timeout=20)
        finally:
            child.kill()
        assert (child.returncode, complained) == (128 + signal.SIGTERM, "")
        assert below
        assert not any(Path("/proc", number).exists() for number in below)
        eventually(lambda: not database.query(waiting) and not left_behind(database))


def test_publications_that_were_left_are_dropped_by_the_next_one(database: Database, config: Path) -> None:
    """But none of another's, and none that may be in use: with a slot, or so young that it comes yet."""
    fresh, stranger = f"penstock_tail_{time.time_ns()}", f"stranger_{database.name}"
    names = [*(f"penstock_tail_{end}" for end in "1234x"), fresh]
    try:
        database.execute(
            f"create role {stranger}",
            *(f"create publication {name}; comment on publication {name} is '{MARK}'" for name in names),
            "comment on publication penstock_tail_2 is 'of somebody else'",
            f"alter publication penstock_tail_3 owner to {stranger}",
            "select pg_create_logical_replication_slot('penstock_tail_4', 'pgoutput')",
        )
        tail = Tail(config)
        assert "temporary slot" in tail.said
        assert tail.finish(interrupt=True)[0] == 130
        left = database.query("select pubname::text from pg_publication")
        assert {name for (name,) in left} == {*names} - {"penstock_tail_1"}
    finally:
        database.execute("drop publication penstock_tail_3", f"drop role {stranger}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["publication", "folder", "following"])
def test_a_signal_ends_it_as_ctrl_c_does_also_while_it_starts(
    database: Database, config: Path, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    """What it made is gone: the publication, the slot, the folder, the process that captured."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    child = subprocess.Popen(
        [*TAIL, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert child.stderr is not None
    if moment == "publication":
        eventually(lambda: database.query("select 1 from pg_publication"))
    elif moment == "folder":
        eventually(lambda: list(temporary.glob("penstock-tail-*/*")))
    else:
        assert "temporary slot" in child.stderr.readline()
    child.send_signal(number)
    child.send_signal(number)  # an impatient init system does not keep it from clearing up
    _, complained = child.communicate(timeout=60)
    assert (child.returncode, complained) == (128 + number, "")
    assert database.query("select pubname from pg_publication") == []
    assert list(temporary.glob("penstock-tail-*")) == []
    eventually(lambda: not left_behind(database))

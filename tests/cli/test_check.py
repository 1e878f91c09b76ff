"""`penstock check`, as it is run: exit codes, output for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.embedded.postgres import PostgresServer
from penstock.model import Lsn
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.state.store import Store
from tests.bed import Database, fresh_database

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def penstock(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environ,
        timeout=60,
    )


@pytest.fixture
def password(database: Database) -> str:
    return database.server.password


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Path:
    database.execute("create table users (id int primary key)")
    path = tmp_path / "shop.yml"
    path.write_text(
        f"pipeline: shop\nspool: {{path: {tmp_path}/spool}}\n"
        f"sources:\n  - name: eu\n    dsn: {database.dsn}\n"
        f"  - name: us\n    dsn: {database.dsn}\n    connection: {{password_env: SHOP_PASSWORD}}\n"
    )
    return path


def test_a_good_configuration_has_exit_code_0(config: Path, password: str) -> None:
    done = penstock("check", config, SHOP_PASSWORD=password)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "eu"
    assert "us" in lines
    assert "  ok       wal_level: logical" in lines
    assert password not in done.stdout
    assert "\x1b" not in done.stdout


def test_json_for_programs(config: Path, password: str) -> None:
    done = penstock("check", config, "--json", SHOP_PASSWORD=password)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one.get("source") or one["state"] for one in found} == {"eu", "us", "shop"}
    assert {tuple(one)[1:] for one in found} == {("name", "outcome", "detail", "remedy")}


def test_a_terminal_has_colours(config: Path, password: str) -> None:
    ours, theirs = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(
        [*PENSTOCK, "check", str(config)],
        stdout=theirs,
        env=environ | {"SHOP_PASSWORD": password, "TERM": "xterm"},
        check=True,
        timeout=60,
    )
    os.close(theirs)
    assert b"\x1b[32mok" in os.read(ours, 10_000)
    os.close(ours)


def test_a_failed_check_has_exit_code_1(config: Path, database: Database, password: str) -> None:
    database.execute("create table keyless (x int)")
    done = penstock("check", config, SHOP_PASSWORD=password)
    assert done.returncode == 1
    assert (
        "  failure  replica identity: left out: public.keyless: it has no primary key and no replica "
        "identity. Add a primary key" in done.stdout
    )


def test_a_wrong_configuration_has_exit_code_2_and_no_traceback(config: Path) -> None:
    done = penstock("check", config)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: {config}:8: sources[1].connection.password_env: "
        "expected the environment variable SHOP_PASSWORD to be set.\n"
    )


def test_wrong_usage_has_exit_code_2() -> None:
    assert penstock("check").returncode == 2
    assert penstock("chekc").returncode == 2
    assert penstock("check", "nowhere.yml").stderr.startswith("error: nowhere.yml: expected a configuration")


def test_a_server_that_is_away_is_a_failed_check(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.stop()
    path = tmp_path / "away.yml"
    path.write_text(f"pipeline: x\nsources: [{{name: a, dsn: '{own_server.dsn(password='hush')}'}}]")
    done = penstock("check", path)
    assert done.returncode == 1
    assert done.stdout.startswith("a\n  failure  connection: ")
    assert "hush" not in done.stdout + done.stderr


def test_a_wrong_password_is_never_printed(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.execute("create role cdc login password 'right'")
    (own_server.data / "pg_hba.conf").write_text(
        "host all cdc 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"
    )
    own_server.execute("select pg_reload_conf()")
    path = tmp_path / "wrong.yml"
    path.write_text(
        f"pipeline: x\nsources: [{{name: a, dsn: 'postgresql://cdc:hush@127.0.0.1:{own_server.port}/postgres'}}]"
    )
    done = penstock("check", path)
    assert done.returncode == 1
    assert 'password authentication failed for user "cdc"' in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "silent.yml"
        path.write_text(
            f"pipeline: x\nsources: [{{name: a, dsn: 'host=127.0.0.1 port={silent.getsockname()[1]}'}}]"
        )
        running = subprocess.Popen(
            [*PENSTOCK, "check", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            assert running.communicate(timeout=30) == ("", "")
    assert running.returncode == 130


def test_a_reader_that_has_seen_enough_is_no_error(config: Path, password: str) -> None:
    shown = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", *PENSTOCK, "check", str(config)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"SHOP_PASSWORD": password},
        timeout=60,
    )
    assert (shown.stdout, shown.stderr) == ("eu\n", "")


def test_the_version() -> None:
    assert penstock("--version").stdout == "penstock 0.1.0\n"


Told = dict[tuple[str, str], tuple[str, str]]


def told(*arguments: object) -> Told:
    """What `check` says of what: by destination (or source, or pipeline) and check, outcome and detail."""
    done = penstock("check", *arguments, "--json")
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == int(any(one["outcome"] == "failure" for one in lines))
    return {(next(iter(one.values())), one["name"]): (one["outcome"], one["detail"]) for one in lines}


@pytest.fixture
def there(server: PostgresServer) -> Iterator[Database]:
    """A destination in which the role `writer` may nothing."""
    server.execute("create role writer login")
    yield from fresh_database(server)
    server.execute("drop role writer")


@pytest.fixture
def delivered(database: Database, there: Database, tmp_path: Path) -> dict[str, Any]:
    """A configuration with two destinations."""
    database.execute("create table users (id int primary key)", "create table logs (id int primary key)")
    dsn = there.server.dsn(there.name, user="writer", password="hush")
    memory = {"name": "own", "type": "python", "class": "penstock.destinations.memory.Memory"}
    return {
        "pipeline": "shop",
        "sources": [{"name": "eu", "dsn": database.dsn}],
        "destinations": [
            {"name": "copy", "type": "postgres", "dsn": dsn, "schema": "app"},
            memory | {"options": {"key": "x"}},
        ],
        "spool": {"path": f"{tmp_path}/spool"},
        "state": {"url": f"sqlite:///{tmp_path}/state/state.db"},
    }


def written(document: dict[str, Any], folder: Path) -> Path:
    file = folder / "shop.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_destination_that_lacks_rights_fails_and_nothing_is_changed(
    delivered: dict[str, Any], there: Database, tmp_path: Path
) -> None:
    file = written(delivered, tmp_path)
    found = told(file)
    assert found["copy", "connection"][0] == found["copy", "version"][0] == "ok"
    assert found["copy", "schema penstock"] == ("failure", "it cannot be created by this role")
    assert found["copy", "tables"] == ("failure", "the role may not create tables in the schema app")
    assert found["copy", "session_replication_role"][0] == "warning"
    assert found["own", "class"][0] == "ok"
    assert found["shop", "state store"] == ("ok", f"{tmp_path}/state/state.db will be created")
    there.execute(
        f"grant create on database {there.name} to writer",
        "grant set on parameter session_replication_role to writer",
    )
    try:
        found = told(file)
        assert {outcome for (name, _), (outcome, _) in found.items() if name == "copy"} == {"ok"}
        assert found["copy", "tables"] == ("ok", "there: 0, to be created: 2")
        there.execute(f"revoke temporary on database {there.name} from public")
        assert told(file)["copy", "temporary tables"][0] == "failure"
        delivered["destinations"][0]["create_tables"] = False
        missing = told(written(delivered, tmp_path))["copy", "tables"]
        assert missing == ("failure", "app.logs, app.users not there, and create_tables is false")
        there.execute(
            "create schema app", "create table app.users (id int)", "create table app.logs (id int)"
        )
        denied = told(file)["copy", "tables"]
        assert denied == ("failure", "the role may not read and write app.logs, app.users")
    finally:
        there.execute("revoke set on parameter session_replication_role from writer", "drop owned by writer")
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yml"]
    assert there.query("select 1 from pg_namespace where nspname = 'penstock'") == []
    assert "hush" not in penstock("check", file).stdout


def test_a_destination_that_is_no_good_is_a_failed_check(delivered: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Half:\n    def write_events(self, batch): ...\nraise_it = 1 / 0\n"
    )
    classes = {
        "penstock.model.Lsn": "has no method truncate_table, write_table_rows, write_events",
        "penstock.destinations.memory.Nothing": "cannot be imported",
        "penstock.destinations.memory.Memory": "does not take these options",
    }
    given = [
        {"name": f"d{n}", "type": "python", "class": path, "options": {"kee": 1}}
        for n, path in enumerate(classes)
    ]
    delivered["destinations"] = given
    found = told(written(delivered, tmp_path))
    for n, said in enumerate(classes.values()):
        assert found[f"d{n}", "class"][0] == "failure"
        assert said in found[f"d{n}", "class"][1]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_who_holds_the_state_is_told(
    delivered: dict[str, Any], there: Database, tmp_path: Path, kind: str
) -> None:
    server = there.server.url(there.name)
    url = delivered["state"]["url"] if kind == "sqlite" else server
    delivered["state"]["url"] = url
    delivered["destinations"] = []
    file = written(delivered, tmp_path)
    assert "will be created" in told(file)["shop", "state store"][1]
    with Store.open(url, "shop", exclusive=True):
        held = told(file)["shop", "state store"]
    assert held[0] == "ok"
    assert f"in use by process {os.getpid()}" in held[1]
    assert told(file)["shop", "state store"] == ("ok", "is there, no pipeline uses it now")


@pytest.mark.parametrize(("lost", "outcome"), [("error", "failure"), ("resync", "warning")])
def test_a_spool_without_its_slot_is_a_lost_slot(
    delivered: dict[str, Any], database: Database, tmp_path: Path, lost: str, outcome: str
) -> None:
    ((system,),) = database.query("select system_identifier::text from pg_control_system()")
    ours = Identity(system, database.name, "penstock_shop_eu")
    Manifest.create(tmp_path / "spool" / "shop" / "eu", ours, Lsn(1)).close()
    delivered["sources"][0]["replication"] = {"on_slot_lost": lost}
    found = told(written(delivered, tmp_path))["eu", "slot"]
    assert found == (outcome, "penstock_shop_eu: the slot does not exist any more")

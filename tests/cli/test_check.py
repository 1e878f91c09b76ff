"""`penstock check`, as it is run: exit codes, output for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.embedded.postgres import PostgresServer
from tests.bed import Database

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
def config(database: Database, tmp_path: Path) -> Path:
    database.execute("create table users (id int primary key)")
    path = tmp_path / "shop.yml"
    path.write_text(
        f"pipeline: shop\nspool: {{path: {tmp_path}/spool}}\n"
        f"sources:\n  - name: eu\n    dsn: {database.dsn} password=hush\n"
        f"  - name: us\n    dsn: {database.dsn}\n    connection: {{password_env: SHOP_PASSWORD}}\n"
    )
    return path


def test_a_good_configuration_has_exit_code_0(config: Path) -> None:
    done = penstock("check", config, SHOP_PASSWORD="hush")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "eu"
    assert "us" in lines
    assert "  ok       wal_level: logical" in lines
    assert "hush" not in done.stdout
    assert "\x1b" not in done.stdout


def test_json_for_programs(config: Path) -> None:
    done = penstock("check", config, "--json", SHOP_PASSWORD="hush")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["source"] for one in found} == {"eu", "us"}
    assert {tuple(one) for one in found} == {("source", "name", "outcome", "detail", "remedy")}


def test_a_terminal_has_colours(config: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(
        [*PENSTOCK, "check", str(config)],
        stdout=theirs,
        env=environ | {"SHOP_PASSWORD": "x", "TERM": "xterm"},
        check=True,
        timeout=60,
    )
    os.close(theirs)
    assert b"\x1b[32mok" in os.read(ours, 10_000)
    os.close(ours)


def test_a_failed_check_has_exit_code_1(config: Path, database: Database) -> None:
    database.execute("create table keyless (x int)")
    done = penstock("check", config, SHOP_PASSWORD="hush")
    assert done.returncode == 1
    assert (
        "  failure  replica identity: no primary key and no replica identity: public.keyless. Add"
        in done.stdout
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


def test_a_reader_that_has_seen_enough_is_no_error(config: Path) -> None:
    shown = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", *PENSTOCK, "check", str(config)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"SHOP_PASSWORD": "hush"},
        timeout=60,
    )
    assert (shown.stdout, shown.stderr) == ("eu\n", "")


def test_the_version() -> None:
    assert penstock("--version").stdout == "penstock 0.1.0\n"

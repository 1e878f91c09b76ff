"""The embedded server: nobody else on the machine gets in, and its process has no rights of ours."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import psycopg
import pytest

from penstock.embedded.postgres import PostgresServer

STRANGER = """
import os, pwd, sys, psycopg
if sys.argv[2]:
    user = pwd.getpwnam(sys.argv[2])
    os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
try:
    psycopg.connect(sys.argv[1], connect_timeout=5)
except psycopg.OperationalError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """As the demo makes it: the tests' own let roles in without a password."""
    made = PostgresServer(Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp")))
    made.start()
    yield made
    made.remove()


def refused(target: str, user: str = "") -> str:
    """What a stranger without a password is told, who may be another user of the machine."""
    done = subprocess.run([sys.executable, "-c", STRANGER, target, user], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    return done.stderr


def without_password(server: PostgresServer, **keywords: str) -> str:
    return server.dsn(password="", **keywords)


def test_a_stranger_is_refused_over_tcp_and_at_the_socket(server: PostgresServer) -> None:
    for keywords in ({}, {"replication": "database"}, {"replication": "true"}):
        told = refused(without_password(server, **keywords))
        assert "no password supplied" in told or "no pg_hba.conf entry" in told
    assert "authentication failed" in refused(server.dsn(password="guessed"))
    assert "no password supplied" in refused(without_password(server, host=server.sockets))
    with psycopg.connect(server.dsn(host=server.sockets)) as connection:
        assert connection.execute("show unix_socket_permissions").fetchone() == ("0700",)
    assert S_IMODE(Path(server.sockets).stat().st_mode) == 0o700
    assert S_IMODE(server.folder.stat().st_mode) == 0o700
    for file in (server.log, server.folder / "password", server.data / "pg_hba.conf"):
        assert S_IMODE(file.stat().st_mode) == 0o600, file
    if os.geteuid() == 0:  # then we can be somebody else
        assert "no password supplied" in refused(without_password(server), "nobody")
        assert "Permission denied" in refused(without_password(server, host=server.sockets), "nobody")
    assert server.password not in server.log.read_text()
    assert server.password not in Path(f"/proc/{postmaster(server)}/cmdline").read_text()


def test_a_program_run_by_the_server_has_nothing_of_ours(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_PASSWORD", "hush")
    server.stop()
    server.start()
    output = server.folder / "told"
    server.execute(f"copy (select 1) to program 'id > {output}; env >> {output}'")
    told = output.read_text()
    if os.geteuid() == 0:
        user = pwd.getpwuid(server.data.stat().st_uid)
        assert told.splitlines()[0].startswith(f"uid={user.pw_uid}({user.pw_name}) gid={user.pw_gid}(")
        assert "root" not in told.splitlines()[0]
        assert told.splitlines()[0].count("(") == 3, "no supplementary group"
    assert "hush" not in told
    assert "hush" not in Path(f"/proc/{postmaster(server)}/environ").read_text()


def test_it_starts_again_from_its_folder_and_one_that_let_everybody_in_is_closed(
    server: PostgresServer,
) -> None:
    server.execute("create table kept as select 1 as x")
    server.stop()
    again = PostgresServer(server.folder, server.bin)
    assert again.password == server.password
    again.start()
    again.execute("select x from kept")
    again.execute("alter role postgres password null")
    (again.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
    again.stop()
    (again.folder / "password").unlink()

    later = PostgresServer(server.folder, server.bin)
    later.start()
    try:
        assert later.password != ""
        later.execute("select x from kept")
        assert "no password supplied" in refused(without_password(later))
        assert "no password supplied" in refused(without_password(later, host=later.sockets))
    finally:
        later.stop()


def postmaster(server: PostgresServer) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])

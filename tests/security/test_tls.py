"""`check` names connections to other machines that are not encrypted, or that nobody verifies.

The embedded server has no TLS, so a proxy before it does: to libpq it is the server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from penstock.postgres.connection import connect
from penstock.postgres.preflight.tls import Link, judged, link
from tests.bed import Database
from tests.security.granting import PENSTOCK
from tests.security.proxy import CERTIFICATE, ELSEWHERE, PORT, proxy, socket_of

PREFERRED = Link("db", "10.0.0.7", True, "prefer")

JUDGED = [
    (Link("/var/run/postgresql", "", False, "prefer"), None),
    (Link("@abstract", "", False, "prefer"), None),
    (Link("", "", False, "prefer"), None),
    (Link("localhost", "127.0.0.1", False, "prefer"), None),
    (Link("localhost", "127.8.8.8", False, "disable"), None),
    (Link("::1", "::1", False, "prefer"), None),
    (Link("db", "::ffff:127.0.0.1", False, "prefer"), None),
    (Link("localhost", "10.0.0.7", False, "prefer"), "not encrypted"),
    (Link("db", "10.0.0.7", False, "disable"), "not encrypted"),
    (Link("db", "fe80::1%eth0", False, "prefer"), "not encrypted"),
    (Link("db", "::ffff:10.0.0.7", False, "prefer"), "not encrypted"),
    (Link("db.example.com", "", False, "prefer"), "not encrypted"),
    (PREFERRED, "nobody verifies it"),
    (replace(PREFERRED, sslmode="allow"), "nobody verifies it"),
    (replace(PREFERRED, sslmode="require"), "nobody verifies it"),
    (replace(PREFERRED, sslmode="verify-ca"), "name is not compared"),
    (replace(PREFERRED, sslmode="verify-full"), "encrypted, and verified"),
    (replace(PREFERRED, encrypted=False, kerberos=True), "encrypted by GSSAPI"),
]


@pytest.mark.parametrize(("given", "said"), JUDGED, ids=[f"{one.host}-{one.sslmode}" for one, _ in JUDGED])
def test_what_is_said_of_a_connection(given: Link, said: str | None) -> None:
    found = judged(given)
    if said is None:
        assert found is None
        return
    assert found is not None
    assert said in found.detail
    good = given.kerberos or given.sslmode == "verify-full"
    assert (found.outcome.value, "sslmode=verify-full" in found.remedy) == (
        ("ok", False) if good else ("warning", True)
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The authority that made the certificate: itself."""
    return Path(shutil.copy(CERTIFICATE, tmp_path / "root.pem"))


def test_a_connection_tells_what_it_is(database: Database, root: Path) -> None:
    with proxy("127.0.0.1", 0, socket_of(database.server)) as to:
        for mode, encrypted in (("disable", False), ("require", True), ("verify-full", True)):
            dsn = make_conninfo(database.dsn, host="localhost", hostaddr="127.0.0.1", port=to)
            with connect(make_conninfo(dsn, sslmode=mode, sslrootcert=str(root))) as connection:
                assert link(connection) == Link("localhost", "127.0.0.1", encrypted, mode)


def test_check_warns_of_connections_to_other_machines(database: Database, tmp_path: Path, root: Path) -> None:
    """Source, destination and state store, each by a connection of its own. The other machine is an address
    of a network that has nothing but `check` and the proxy in it."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("it takes root, and the programs unshare and ip, to make a network of one's own")
    database.execute("create table users (id int primary key)")
    place = make_conninfo(database.dsn, host="localhost", hostaddr=ELSEWHERE, port=PORT)
    url = f"postgresql://postgres:{database.server.password}@localhost:{PORT}/{database.name}"
    config = {
        "pipeline": "shop",
        "sources": [{"name": "eu", "dsn": make_conninfo(place, sslmode="disable")}],
        "destinations": [
            {"name": "copy", "type": "postgres", "dsn": make_conninfo(place, sslmode="require")}
        ],
        "spool": {"path": str(tmp_path / "spool")},
        "state": {"url": f"{url}?hostaddr={ELSEWHERE}&sslmode=verify-full&sslrootcert={root}"},
    }
    file = tmp_path / "shop.json"
    file.write_text(json.dumps(config))
    module = [sys.executable, "-m", "tests.security.proxy", socket_of(database.server)]
    checked = subprocess.run(
        ["unshare", "-n", *module, *PENSTOCK, "check", str(file), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    told = [json.loads(line) for line in checked.stdout.splitlines()]
    found = [(next(iter(one.values())), one["outcome"]) for one in told if one["name"] == "tls"]
    assert found == [("eu", "warning"), ("copy", "warning"), ("shop", "ok")], checked.stderr

"""`check` names connections to other machines that are not encrypted, or that nobody verifies.

The embedded server has no TLS, so a proxy before it does: to libpq it is the server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from penstock.postgres.connection import connect
from penstock.postgres.preflight.tls import Link, judged, link
from tests.bed import Database
from tests.security.granting import penstock

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Of a `localhost` that nobody has, with its key, valid for a hundred years."""

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
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


@contextmanager
def proxy(address: str, port: int) -> Iterator[int]:
    """A port that speaks TLS with those who ask for it, and hands everything on to another port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    listener = socket.create_server((address, 0))
    loop = asyncio.new_event_loop()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        first = await reader.readexactly(8)
        if first == SSL_REQUEST:
            writer.write(b"S")
            await writer.start_tls(context)
        else:
            to_server.write(first)
        await asyncio.gather(handed_on(reader, to_server), handed_on(from_server, writer))

    async def handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while said := await reader.read(65536):
                writer.write(said)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def serve() -> None:
        async with await asyncio.start_server(meet, sock=listener):
            await stop.wait()
            while len(tasks := asyncio.all_tasks()) > 1:
                await asyncio.wait(tasks - {asyncio.current_task()}, timeout=5)

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def own_address() -> str:
    """One of this machine's that others could reach; the loopback one where it has no other."""
    found = (
        one.address for addresses in psutil.net_if_addrs().values() for one in addresses if one.family == 2
    )
    return next((one for one in found if not ipaddress.ip_address(one).is_loopback), "127.0.0.1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The authority that made the certificate: itself."""
    return Path(shutil.copy(CERTIFICATE, tmp_path / "root.pem"))


def test_a_connection_tells_what_it_is(database: Database, root: Path) -> None:
    with proxy("127.0.0.1", database.server.port) as to:
        for mode, encrypted in (("disable", False), ("require", True), ("verify-full", True)):
            dsn = f"host=localhost hostaddr=127.0.0.1 port={to} user=postgres dbname={database.name}"
            with connect(f"{dsn} sslmode={mode} sslrootcert={root}") as connection:
                assert link(connection) == Link("localhost", "127.0.0.1", encrypted, mode)


def test_check_warns_of_connections_to_other_machines(database: Database, tmp_path: Path, root: Path) -> None:
    """Source, destination and state store, each by a connection of its own."""
    database.execute("create table users (id int primary key)")
    address = own_address()
    with proxy(address, database.server.port) as to:
        place = f"hostaddr={address} port={to} user=postgres dbname={database.name}"
        url = f"postgresql://postgres@localhost:{to}/{database.name}?hostaddr={address}"
        config = {
            "pipeline": "shop",
            "sources": [{"name": "eu", "dsn": f"host=localhost {place} sslmode=disable"}],
            "destinations": [
                {"name": "copy", "type": "postgres", "dsn": f"host=localhost {place} sslmode=require"}
            ],
            "spool": {"path": str(tmp_path / "spool")},
            "state": {"url": f"{url}&sslmode=verify-full&sslrootcert={root}"},
        }
        file = tmp_path / "shop.json"
        file.write_text(json.dumps(config))
        told = [json.loads(line) for line in penstock("check", file, "--json").stdout.splitlines()]
    found = [(next(iter(one.values())), one["outcome"]) for one in told if one["name"] == "tls"]
    loopback = ipaddress.ip_address(address).is_loopback
    assert found == ([] if loopback else [("eu", "warning"), ("copy", "warning"), ("shop", "ok")])

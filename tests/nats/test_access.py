"""The ways into a NATS server: a password, a token, an NKey; TLS, and a certificate of one's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import nkeys
import pytest

from penstock.config import load
from penstock.consumer.access import ConsumerAccess, connect
from penstock.destinations.nats import streams
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.options import NatsOptions
from penstock.embedded.nats import USER, NatsServer
from penstock.model.errors import AccessDenied, ConfigError, ConnectionFailed, FeedUnreachable, PenstockError
from penstock.monitoring.stream_info import described
from tests.bed import Database
from tests.pipeline.running import configuration


def restarted(server: NatsServer, **settings: Any) -> None:
    server.stop()
    server.settings |= settings
    server.start()


def account(database: Database, folder: Path, server: NatsServer, **settings: Any) -> Any:
    """What the server says of the account that these keys open."""
    file = configuration(folder, database, {"name": "bus", "type": "nats", "servers": server.url, **settings})
    link = NatsLink.of(load(file).destinations[0].settings(NatsOptions).access())
    try:
        return link.run(streams.ask(link, "INFO"))
    finally:
        link.close()


def test_a_password_opens_and_another_does_not(
    database: Database, nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_PASSWORD", nats.password)
    assert "limits" in account(database, tmp_path, nats, user=USER, password_env="BUS_PASSWORD")
    with pytest.raises(AccessDenied) as told:
        account(database, tmp_path, nats, user=USER, password="wrong-secret")
    assert "wrong-secret" not in str(told.value)


def test_a_token_opens(
    database: Database, own_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(own_nats, accounts={}, authorization={"token": "let-me-in"})
    monkeypatch.setenv("BUS_TOKEN", "let-me-in")
    assert "limits" in account(database, tmp_path, own_nats, token_env="BUS_TOKEN")
    with pytest.raises(AccessDenied):
        account(database, tmp_path, own_nats)


def test_an_nkey_opens(database: Database, own_nats: NatsServer, tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    restarted(own_nats, accounts={"A": {"jetstream": "enabled", "users": [{"nkey": public}]}})
    file = tmp_path / "seed"
    file.write_bytes(seed)
    assert "limits" in account(database, tmp_path, own_nats, nkey_file=str(file))


@pytest.mark.parametrize("key", ["nkey_file", "creds_file"])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "secret-garbage",
        "SUsecret\n",
        "-----BEGIN NATS USER JWT-----\nsecret\n------END NATS USER JWT------\n",
        "-----BEGIN NATS USER JWT-----\nsecret\n------\n-----BEGIN USER NKEY SEED-----\nSUsecret\n------\n",
    ],
)
def test_a_file_that_is_no_seed_is_told(
    database: Database, nats: NatsServer, tmp_path: Path, key: str, content: str
) -> None:
    file = tmp_path / "seed"
    file.write_text(content)
    with pytest.raises(AccessDenied, match=f"`{key}` does not let us into NATS") as told:
        account(database, tmp_path, nats, **{key: str(file)})
    assert "secret" not in str(told.value)
    settings = {"name": "bus", "type": "nats", "servers": nats.url, key: str(file)}
    with pytest.raises(AccessDenied, match=f"`{key}` does not let us into NATS"):
        asyncio.run(described(load(configuration(tmp_path, database, settings)), None))
    options: dict[str, Any] = {key: file}
    with pytest.raises(FeedUnreachable, match=f"`{key}`") as told_consumers:
        asyncio.run(connect(ConsumerAccess((nats.url,), **options)))
    assert "secret" not in str(told_consumers.value)


@pytest.mark.skipif(which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_tls_with_a_certificate_that_is_trusted_and_one_that_is_shown(
    database: Database, own_nats: NatsServer, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    files = {"cert_file": str(certificate), "key_file": str(key)}
    restarted(own_nats, tls=files | {"ca_file": str(certificate), "verify": True})
    login = {"user": USER, "password": own_nats.password}
    trusted = {"tls": files | {"ca_file": str(certificate)}}
    assert "limits" in account(database, tmp_path, own_nats, **login, **trusted)
    with pytest.raises(PenstockError) as told:
        account(database, tmp_path, own_nats, **login, tls={"ca_file": str(certificate)})
    assert isinstance(told.value, ConnectionFailed | AccessDenied)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"servers": "nats://user:secret@host:4222"}, "without user and password"),
        ({"servers": "http://host"}, "expected a server such as"),
        ({"servers": ["nats://host", "wss://host"]}, "expected a server such as"),
        ({"servers": []}, "servers"),
        ({"user": "u", "token_env": "PATH"}, "only one of user, token_env"),
        ({"password": "p"}, "the user that has the password"),
        ({"creds_file": "/nowhere/user.creds"}, "expected a file"),
        ({"sync": "always"}, "monitoring_url"),
        ({"stream": "a.b"}, "letters, digits"),
        ({"init_stream": "CDC"}, "three streams"),
        ({"tables": {"public.t": {"kind": "history"}}}, "no `kind` and no `target`"),
        ({"tls": {"cert_file": "/etc/hostname"}}, "together"),
    ],
)
def test_wrong_keys_are_told_with_their_line(
    database: Database, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    settings = {"name": "bus", "type": "nats", "servers": "nats://host:4222", **wrong}
    with pytest.raises(ConfigError, match=r"pipeline\.yaml:") as told:
        load(configuration(tmp_path, database, settings))
    assert said in str(told.value)
    assert "secret" not in str(told.value)

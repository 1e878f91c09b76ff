"""Secrets of every kind, looked for in everything that the HTTP process answers, logs and is started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import Config, load
from penstock.embedded.nats import NatsServer
from penstock.embedded.postgres import PostgresServer
from penstock.state.store import Store
from tests.monitoring.asking import Answer, Asking
from tests.monitoring.conftest import add_tables
from tests.monitoring.serving import beside, servers

TOKEN = "c4nary-t0ken"
OTHERS = ("c4nary-source", "c4nary-state", "c4nary-copy", "c4nary-nats", "c4nary-spark", "c4nary-variable")
ROLES = ("source", "state")


@pytest.fixture
def canaries(own_server: PostgresServer) -> list[str]:
    """The passwords of roles that exist, and may do everything."""
    access = own_server.data / "pg_hba.conf"
    access.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
    for role in ROLES:
        own_server.execute(f"create role {role} superuser login password 'c4nary-{role}'")
    own_server.execute("select pg_reload_conf()")
    return [TOKEN, *OTHERS]


def configured(folder: Path, server: PostgresServer, nats: NatsServer, *, wrong: bool) -> Config:
    """A pipeline with a secret wherever one can be; where they are wrong, servers refuse them."""
    source = "x" if wrong else "source"
    document: dict[str, Any] = {
        "pipeline": "test",
        "sources": [
            {"name": "source", "dsn": f"postgresql://{source}@127.0.0.1:{server.port}/postgres",
             "connection": {"password_env": "SOURCE"}},
        ],
        "destinations": [
            {"name": "copy", "type": "postgres",
             "dsn": f"postgresql://x:c4nary-copy@127.0.0.1:{server.port}/postgres"},
            {"name": "bus", "type": "nats", "servers": nats.url, "user": "x", "password": "c4nary-nats"},
        ],
        "spool": {"path": str(folder / "spool")},
        "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "c4nary-spark"}},
        "monitoring": {"port": 0, "token_env": "TOKEN"},
    }  # fmt: skip
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    url = f"postgresql://state:c4nary-state@127.0.0.1:{server.port}/postgres"
    return load(
        file,
        {
            "SOURCE": "c4nary-source",
            "TOKEN": TOKEN,
            "PENSTOCK_STATE__URL": url,
        },
    )


def everything(ask: Asking) -> dict[str, Answer]:
    """Every address, by everyone: with the token, without, with a wrong one, as another site, too large."""
    right, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": "Bearer nothing"}
    described = ask("/openapi.json").document["paths"]
    table, nobody = "public.orders", "public.nobody"
    answers = {}
    for path in ("/", "/assets/dashboard.js", "/assets/style.css", "/assets/nothing", "/nothing", *described):
        for who, headers in (("right", right), ("wrong", wrong), ("nobody", {})):
            for method in ("GET", "POST", "PUT", "HEAD"):
                for name in (table, nobody):
                    if "shutdown" in path and who == "right":
                        continue
                    answers[f"{method} {path} {name} {who}"] = ask(
                        path.replace("{table}", name), method, **headers
                    )
        answers[f"{path} elsewhere"] = ask(path, "POST", Origin="http://evil.example", **right)
        answers[f"{path} other name"] = ask(path, Host="evil.example", **right)
        answers[f"{path} large"] = ask.send(path, "POST", b"x" * 70_000, right)
    answers["streams"] = ask("/streams/info?stream=CDC", **right)
    return answers


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_no_secret_is_told(
    own_server: PostgresServer,
    own_nats: NatsServer,
    canaries: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    wrong: bool,
) -> None:
    config = configured(tmp_path, own_server, own_nats, wrong=wrong)
    for name, value in (
        ("SOURCE", "c4nary-source"),
        ("TOKEN", TOKEN),
        ("PENSTOCK_STATE__URL", "c4nary-state"),
    ):
        monkeypatch.setenv(name, value)
    with (
        Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True) as store,
        beside(config) as monitoring,
    ):
        add_tables(store)
        assert monitoring.url is not None
        ask = Asking(monitoring.url)
        ask.until("/status", lambda answer: b"public.orders" in answer.body)
        (process,) = servers()
        started_with = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        started_with += Path(f"/proc/{process.pid}/environ").read_bytes()
        answers = everything(ask)
    said = {name: f"{answer.headers} {answer.body.decode()}" for name, answer in answers.items()}
    said |= {"log": "".join(capfd.readouterr()), "process": started_with.decode()}
    found = {(name, canary) for name, text in said.items() for canary in canaries if canary in text}
    assert found == set()
    assert {answer.code for answer in answers.values()} >= {200, 202, 401, 403, 404, 405, 409, 413, 421, 503}
    assert "does not answer" in said["streams"] or "uthorization" in said["streams"]
    reason = json.dumps(answers["GET /ready public.orders right"].document)
    assert ("password authentication failed" in reason) == wrong

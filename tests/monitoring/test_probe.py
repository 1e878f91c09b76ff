"""The health check of a container asks where the configuration says that HTTP is served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.config import load
from penstock.monitoring import probe
from penstock.monitoring.observing import Heart
from tests.bed import Database
from tests.deploy.builder import ROOT
from tests.monitoring.asking import Served, served
from tests.pipeline.running import configuration

DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


@pytest.fixture(autouse=True)
def _as_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_MONITORING__ENABLED")
    monkeypatch.setenv("TOKEN", "0123456789abcdef")


def with_port(serving: Served, folder: Path, database: Database, **monitoring: Any) -> str:
    """A configuration that names the port of what is served."""
    port = int(serving.ask.host.rpartition(":")[2])
    return str(configuration(folder, database, monitoring={**monitoring, "port": port}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
def test_the_port_and_the_address_are_those_of_the_configuration(
    tmp_path: Path, database: Database, host: str
) -> None:
    monitoring = {"host": host, "token_env": "TOKEN"}
    file = configuration(tmp_path, database, monitoring={**monitoring, "port": 0})
    with served(load(file)) as serving:
        asked = with_port(serving, tmp_path, database, **monitoring)
        assert probe.main(asked) == 0
    assert probe.main(asked) == 1, "nobody serves any more"


def test_a_pipeline_that_is_stuck_is_not_healthy(http: Served, tmp_path: Path, database: Database) -> None:
    http.observer.heart = Heart(os.getpid(), silent_seconds=1000)
    http.ask.until("/health", lambda answer: answer.code == 503)
    assert probe.main(with_port(http, tmp_path, database)) == 1


@pytest.mark.parametrize("monitoring", [{"enabled": False}, {"port": 0}])
def test_what_can_be_asked_nowhere_is_not_ill(
    tmp_path: Path, database: Database, monitoring: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe.main(str(configuration(tmp_path, database, monitoring=monitoring))) == 0
    assert "monitoring.enabled is false" in capsys.readouterr().out


def test_a_wrong_configuration_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(str(tmp_path / "none.yaml")) == 1
    assert "expected a configuration file" in capsys.readouterr().out


def test_the_image_asks_so_with_the_configuration_that_it_runs(
    http: Served, tmp_path: Path, database: Database
) -> None:
    check, command = map(json.loads, re.findall(r"(?m)^ *CMD (.+)$", DOCKERFILE))
    assert command[:2] == ["run", check[-1]]
    asked = [sys.executable, *check[1:-1], with_port(http, tmp_path, database)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "ok")

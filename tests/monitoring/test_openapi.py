"""The API's own description, put to the test against the real server process by schemathesis, all checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import Config, load
from tests.bed import Database
from tests.monitoring.asking import Asking
from tests.monitoring.serving import beside
from tests.pipeline.running import configuration, to_postgres

pytestmark = pytest.mark.usefixtures("store")

TOKEN = "0123456789abcdef"
# That something is not ready is an answer of a probe, and no failure of the server.
SETTINGS = """
[[operations]]
include-path = "/ready"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
KNOWN_TABLE = """
[parameters]
"path.table" = "public.orders"
"""
SCHEMATHESIS = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]


@pytest.fixture
def behind_token(database: Database, tmp_path: Path) -> Config:
    monitoring = {"port": 0, "token_env": "HUSH"}
    file = configuration(tmp_path, database, to_postgres(database), monitoring=monitoring)
    return load(file, {"HUSH": TOKEN})


def finds_nothing(config: Config, folder: Path, settings: str, *how: str) -> None:
    """No answer is other than the description says; `how` says who asks, and how much."""
    (folder / "schemathesis.toml").write_text(settings)
    with beside(config) as served:
        assert served.url is not None
        Asking(served.url).until("/status", lambda answer: "sources" in answer.document)
        done = subprocess.run(
            [*SCHEMATHESIS, f"{served.url}openapi.json", "--checks", "all", *how],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        operations = re.search(r"(\d+) selected / \1 total", done.stdout)
        assert operations, done.stdout
        assert f"{operations[1]} passed" in done.stdout, done.stdout


QUICKLY = ("--phases", "coverage,fuzzing", "--max-examples", "5")
WITH_TOKEN = ("--header", f"Authorization: Bearer {TOKEN}")


@pytest.mark.slow
def test_nothing_is_found_by_who_needs_no_token(config: Config, tmp_path: Path) -> None:
    finds_nothing(config, tmp_path, SETTINGS, *QUICKLY)


@pytest.mark.slow
def test_nothing_is_found_by_who_has_the_token(behind_token: Config, tmp_path: Path) -> None:
    finds_nothing(behind_token, tmp_path, SETTINGS + KNOWN_TABLE, *QUICKLY, *WITH_TOKEN)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS + KNOWN_TABLE], ids=["any", "known"])
@pytest.mark.parametrize("who", [(), WITH_TOKEN], ids=["without", "with"])
def test_nothing_is_found_with_many_examples(
    behind_token: Config, tmp_path: Path, who: tuple[str, ...], settings: str
) -> None:
    finds_nothing(behind_token, tmp_path, settings, "--max-examples", "300", "--workers", "4", *who)

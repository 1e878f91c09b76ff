"""A pipeline that an earlier version ran goes on in this one: that version is run, from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.bed import Database
from tests.pipeline.running import configuration, contents, to_postgres
from tests.upgrades.record import CHANGES, TABLES

ROOT = Path(__file__).parents[2]
EARLIER = {"0.1": "816e21a586552291a9fd801b6aee8039207de124"}
"""The commits whose state, spools and ledgers must open: until there are tags."""


def unpacked(commit: str, folder: Path) -> Path:
    """Return the folder of the packages as they were then."""
    done = subprocess.run(["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the repository has no commit {commit[:7]}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run_once(file: Path, packages: Path | None = None) -> None:
    environment = dict(os.environ) if packages is None else os.environ | {"PYTHONPATH": str(packages)}
    command = "import penstock.cli, sys; print(penstock.cli.__file__); sys.exit(penstock.cli.main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "run", file, "--once"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(packages or ROOT / "src"))


@pytest.mark.slow
@pytest.mark.parametrize("release", EARLIER)
def test_a_pipeline_of_an_earlier_version_goes_on(
    release: str, own_database: Database, tmp_path: Path
) -> None:
    """State and spool are on disk, ledger and registry in databases; nothing is copied anew."""
    server = own_database.server
    server.execute("create database copy")
    destination = Database(server, "copy")
    own_database.execute(*TABLES)
    files = {"name": "files", "type": "files", "base_path": str(tmp_path / "files")}
    file = configuration(tmp_path / "run", own_database, to_postgres(destination), files)
    run_once(file, unpacked(EARLIER[release], tmp_path))
    copies = sorted((tmp_path / "files").glob("*/*/full_reload.csv.gz"))
    assert len(copies) == 2
    own_database.execute(*CHANGES)
    run_once(file)
    for table in ("item", "line"):
        assert contents(destination, table) == contents(own_database, table)
    assert sorted((tmp_path / "files").glob("*/*/full_reload.csv.gz")) == copies
    assert len(list((tmp_path / "files").glob("public.item/*/streaming.csv.gz"))) == 1

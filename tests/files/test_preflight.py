"""`penstock check` for a destination of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config import load
from penstock.destinations.files import preflight
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration


def outcomes(folder: Path, source: Database, **options: Any) -> dict[str, tuple[str, str]]:
    config = load(configuration(folder, source, to_files(folder, **options)))
    checks = preflight.run(config, config.destinations[0])
    return {check.name: (check.outcome.value, check.detail) for check in checks}


def test_what_is_not_there_yet_will_be_made(source: Database, tmp_path: Path) -> None:
    assert outcomes(tmp_path, source) == {
        "base_path": ("ok", f"{tmp_path}/files will be made"),
        "registry at source": ("ok", "cdc_registry will be made"),
    }
    assert not (tmp_path / "files").exists()
    assert "registry at source" not in outcomes(tmp_path, source, file_registry={"enabled": False})


def test_what_keeps_it_from_working_is_said(source: Database, tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file, not a folder")
    source.execute(
        "create schema cdc_registry",
        "create table cdc_registry.table_state (pipeline text, destination text)",
        "insert into cdc_registry.table_state values ('another', 'lake')",
    )
    assert outcomes(tmp_path, source) == {
        "base_path": ("failure", f"{tmp_path}/files cannot be written"),
        "registry at source": ("failure", "cdc_registry is that of pipeline another, destination lake"),
    }
    bucket = {"base_path": "s3://bucket/files?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"}
    outcome, said = outcomes(tmp_path, source, **bucket)["base_path"]
    assert outcome == "failure"
    assert "endpoint_override" not in said


def test_a_locked_registry_is_not_waited_for(source: Database, tmp_path: Path) -> None:
    source.execute(
        "create schema cdc_registry",
        "create table cdc_registry.table_state (pipeline text, destination text)",
    )
    with source.connect() as other, other.transaction():
        other.execute("lock table cdc_registry.table_state in access exclusive mode")
        outcome, said = outcomes(tmp_path, source)["registry at source"]
    assert outcome == "failure"
    assert "lock timeout" in said

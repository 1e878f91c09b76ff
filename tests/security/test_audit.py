"""What CI makes of pip-audit's report: silence is not taken for health."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

AUDIT = Path(__file__).parents[2] / ".ci" / "audit.py"


def verdict(*dependencies: dict[str, Any]) -> tuple[int, list[str]]:
    found = importlib.util.spec_from_file_location("audit", AUDIT)
    assert found is not None
    assert found.loader is not None
    audit = importlib.util.module_from_spec(found)
    found.loader.exec_module(audit)
    told: tuple[int, list[str]] = audit.verdict({"dependencies": list(dependencies)})
    return told


def test_a_vulnerability_fails_and_missing_data_is_said() -> None:
    clean = {"name": "rich", "version": "1", "vulns": []}
    bad = {"name": "numpy", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
    unknown = {"name": "uv", "skip_reason": "not found"}
    assert verdict(clean) == (0, ["pip-audit: 1 packages audited"])
    code, lines = verdict(clean, bad, unknown)
    assert code == 1
    assert "numpy 2" in lines[0]
    assert "PYSEC-1" in lines[0]
    assert lines[1:] == ["pip-audit: nothing is known of uv", "pip-audit: 2 packages audited"]
    code, lines = verdict(unknown, unknown | {"name": "rich"})
    assert (code, len(lines)) == (0, 1)
    assert "cannot be had" in lines[0]

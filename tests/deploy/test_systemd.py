"""The systemd unit, by what systemd itself says of it."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "deploy/systemd"
UNIT = SYSTEMD / "penstock@.service"
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 2.0
"""Of 10, by `systemd-analyze security`. Java and Numba need memory that is written and run."""

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze (Debian: systemd)")


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """The unit with a program that is there: systemd looks for it."""
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / "penstock@shop.service"
    file.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", str(program)))
    return file


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(instance: Path) -> None:
    done = analyze("verify", "--man=no", instance)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_a_mistake_in_the_unit_would_be_noticed(instance: Path) -> None:
    instance.write_text(instance.read_text().replace("KillMode=mixed", "KillMod=mixed"))
    assert "KillMod" in analyze("verify", "--man=no", instance).stderr


@needs_systemd
def test_the_unit_is_hardened(instance: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:.0f}", instance)
    if "unrecognized option" in done.stderr or "Unknown" in done.stderr:
        pytest.skip(f"this systemd has no offline analysis: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_a_wrong_configuration_is_not_started_again_and_everything_else_is() -> None:
    """Exit codes as in `penstock.cli.main`; a stop has the time that Kubernetes gives it, too."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    manifests = SYSTEMD.parent / "kubernetes/statefulset.yaml"
    assert f"terminationGracePeriodSeconds: {service['TimeoutStopSec']}\n" in manifests.read_text()

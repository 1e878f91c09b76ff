"""Whether anything in requirements.lock has a known vulnerability: pip-audit asks PyPI.

It is pinned with hashes in .ci/audit.lock and has an environment of its own, so that nobody who works on
Penstock installs it. A vulnerability fails; data that cannot be had is one line, and no failure. pip-audit
itself would pass over packages that PyPI does not tell of without a word about it in its exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv" / "audit"
SECONDS = 180


def verdict(report: dict[str, list[dict[str, object]]]) -> tuple[int, list[str]]:
    """The exit code, and what to say."""
    told = report["dependencies"]
    vulnerable = [one for one in told if one.get("vulns")]
    skipped = [str(one["name"]) for one in told if one.get("skip_reason")]
    said = [f"vulnerable: {one['name']} {one['version']}: {json.dumps(one['vulns'])}" for one in vulnerable]
    if len(skipped) == len(told):
        return 0, ["pip-audit: the data on vulnerabilities cannot be had here, nothing was audited"]
    if skipped:
        said.append(f"pip-audit: nothing is known of {', '.join(skipped)}")
    return (1 if vulnerable else 0), [*said, f"pip-audit: {len(told) - len(skipped)} packages audited"]


def audit() -> tuple[int, list[str]]:
    try:
        if not (PLACE / "bin" / "pip-audit").exists():
            _run(sys.executable, "-m", "venv", str(PLACE))
            lock = str(ROOT / ".ci" / "audit.lock")
            _run(str(PLACE / "bin" / "python"), "-m", "pip", "install", "-q", "--require-hashes", "-r", lock)
        lock = str(ROOT / "requirements.lock")
        program = str(PLACE / "bin" / "pip-audit")
        done = _run(
            program, "--format", "json", "--disable-pip", "--require-hashes", "-r", lock, codes=(0, 1)
        )
        return verdict(json.loads(done.stdout))
    except (subprocess.SubprocessError, ValueError) as error:
        return 0, [f"pip-audit: the data on vulnerabilities cannot be had here ({type(error).__name__})"]


def _run(*command: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, command[0])
    return done


if __name__ == "__main__":
    code, lines = audit()
    print("\n".join(lines))
    sys.exit(code)

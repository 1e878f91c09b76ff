"""A package of somebody else's that adds types of destinations, as pip leaves it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from penstock.config import destination_types


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, *entries: str) -> None:
    """`module` is the text of `their_module`, the entries are those of `penstock.destinations`."""
    metadata = folder / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[penstock.destinations]", *entries]))
    (folder / "their_module.py").write_text(module)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "their_module", raising=False)  # another test's
    for cached in (destination_types._entries, destination_types.load):
        monkeypatch.setattr(destination_types, cached.__name__, cache(cached.__wrapped__))

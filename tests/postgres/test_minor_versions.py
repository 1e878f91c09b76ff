"""Servers that lack a fix are told by their version."""

from __future__ import annotations

import pytest

from penstock.postgres.preflight.server import loses_changes


@pytest.mark.parametrize(
    ("version", "mended"),
    [
        (140017, "14.18"),
        (140018, None),
        (150012, "15.13"),
        (150013, None),
        (160008, "16.9"),
        (160014, None),
        (170004, "17.5"),
        (170005, None),
        (180000, None),
    ],
)
def test_minor_versions_that_lose_changes_are_told(version: int, mended: str | None) -> None:
    assert loses_changes(version) == mended

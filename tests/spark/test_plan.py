"""Slices of segments: which rows of them are read, and of which file."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model import Lsn
from penstock.model.errors import SpoolDamaged
from penstock.spark.plan import Slice, read, slices
from penstock.spool.manifest import Manifest
from tests.spark.made import START, USERS, MadeSpool


def spooled(folder: Path, *names: str) -> tuple[Slice, list[Lsn]]:
    """A segment with a transaction for each name, and where each of them begins."""
    begins = [START]
    with closing(MadeSpool(folder)) as spool:
        spool.learn(USERS)
        for number, name in enumerate(names):
            spool.insert(USERS, (str(number), name, None))
            begins.append(spool.commit())
    with closing(Manifest.open(folder)) as manifest:
        found = list(slices(folder, manifest.entries(START, begins[-1]), START, manifest.schemas()))
    return found[0], begins


def names_in(part: Slice) -> list[str]:
    return [row[1] for batch in read(part) for row in batch["after"].to_pylist()]


def test_a_slice_is_read_from_its_position_on_in_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    part, begins = spooled(tmp_path / "spool", "a")
    asked = replace(part, columns=("after", "commit_lsn"), after=begins[0])
    assert [batch.schema.names for batch in read(asked)] == [["commit_lsn", "after"]]
    assert names_in(asked) == ["a"]
    assert names_in(replace(asked, after=begins[1])) == []


def test_another_spool_in_the_same_place_is_read_as_it_is(tmp_path: Path) -> None:
    part, _ = spooled(tmp_path / "spool", "a")
    assert names_in(part) == ["a"]
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolDamaged):
        names_in(part)
    again, _ = spooled(tmp_path / "spool", "another name, which is longer")
    assert again.path == part.path
    assert names_in(again) == ["another name, which is longer"]

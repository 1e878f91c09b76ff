"""Slices of segments: which rows of them are read, and of which file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changes.slices import Slice, read_slice
from penstock.model import Lsn
from penstock.model.errors import SpoolDamaged
from penstock.spool.segment import SCHEMA, BeforeKind, Op, write
from tests.changes.made import USERS, WHEN


def segment(folder: Path, *names: str) -> Slice:
    """A segment with a transaction for each name, at 0, 100, …"""
    folder.mkdir()
    rows = [
        {
            "table_id": USERS.id,
            "schema_version": USERS.version,
            "op": Op.INSERT,
            "commit_lsn": 100 * number,
            "lsn": 100 * number,
            "seq": 0,
            "xid": number,
            "committed_at": WHEN,
            "before_kind": BeforeKind.NONE,
            "after": [str(number), name, None],
        }
        for number, name in enumerate(names)
    ]
    path = folder / "1.arrow"
    made = write(path, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    return Slice(path, 0, made.parts[0].batches, made.rows, USERS, None)


def names_in(part: Slice) -> list[str]:
    return [row[1] for batch in read_slice(part) for row in batch["after"].to_pylist()]


def test_a_slice_is_read_from_its_position_on_in_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    part = replace(segment(tmp_path / "spool", "a", "b", "c"), columns=("commit_lsn", "after"))
    assert [batch.schema.names for batch in read_slice(part)] == [["commit_lsn", "after"]]
    assert names_in(part) == ["a", "b", "c"]
    assert names_in(replace(part, after=Lsn(100))) == ["b", "c"]
    assert names_in(replace(part, after=Lsn(101))) == ["c"]
    assert names_in(replace(part, after=Lsn(201))) == []


def test_another_spool_in_the_same_place_is_read_as_it_is(tmp_path: Path) -> None:
    part = segment(tmp_path / "spool", "a")
    assert names_in(part) == ["a"]
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolDamaged):
        names_in(part)
    again = segment(tmp_path / "spool", "another name, which is longer", "b")
    assert again.path == part.path
    assert names_in(again) == ["another name, which is longer", "b"]

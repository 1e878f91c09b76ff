"""Where files are: no name leads out of the base path, and no two tables share a folder."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.destinations.files.layout import LONGEST, Layout, encoded, next_batch
from penstock.destinations.files.registry import Registry
from penstock.model import TableName
from penstock.postgres.connection import Connection

LAYOUT = Layout("{schema}.{table}/{timestamp}", "YYYY-MM-DDTHH-mm-ss")
AT = datetime(2024, 2, 29, 12, 34, 56)


def _fits(name: str) -> bool:
    return 1 <= len(name.encode()) <= 63


_plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=63)
_awkward = st.text(st.sampled_from("./\\%-~:2EFa\n\x1b\x7f\x85\u2028 é日"), min_size=1, max_size=63)
_name = st.one_of(
    _plain, _awkward, st.sampled_from(["..", ".", "/", "%2E", "a.b", "/" * 63, "😀" * 15])
).filter(_fits)
_table = st.builds(TableName, _name, _name)


@settings(max_examples=500, deadline=None)
@given(table=_table)
@example(TableName("..", ".."))
@example(TableName("/" * 63, "." * 63))
@example(TableName("\x01" * 63, "日" * 21))
def test_no_name_leaves_the_base_path(table: TableName) -> None:
    for pattern in ("{schema}.{table}/{timestamp}", "{source}/{schema}/{table}/{timestamp}"):
        folder = Layout(pattern, "YYYY-MM-DDTHH-mm-ss").folder("a source/..", table, AT)
        parts = folder.split("/")
        assert len(parts) == pattern.count("/") + 1
        assert os.path.normpath(folder) == folder
        assert not {"", ".", ".."} & set(parts)
        assert not any(part.startswith(".") for part in parts)
        assert all(len(part.encode()) <= 255 for part in parts)
        assert folder.isprintable() or not any(ord(letter) < 32 or letter == "\x7f" for letter in folder)


@settings(max_examples=500, deadline=None)
@given(one=_table, other=_table)
@example(TableName("a.b", "c"), TableName("a", "b.c"))
@example(TableName("a/b", "c"), TableName("a%2Fb", "c"))
@example(TableName("a", "\x85"), TableName("a", "%85"))
@example(TableName("/" * 62 + "a", "t"), TableName("/" * 62 + "b", "t"))
def test_no_two_tables_share_a_folder(one: TableName, other: TableName) -> None:
    for pattern in (LAYOUT.pattern, "{schema}/{table}/{timestamp}"):
        layout = Layout(pattern, LAYOUT.timestamp_format)
        assert (layout.folder("s", one, AT) == layout.folder("s", other, AT)) == (one == other)


@settings(max_examples=300, deadline=None)
@given(name=_name)
def test_a_name_that_was_cut_is_no_other_name(name: str) -> None:
    made = encoded(name)
    assert len(made.encode()) <= LONGEST
    assert encoded(made) != made or made == name


def test_ordinary_names_stay_as_they_are() -> None:
    assert LAYOUT.folder("s", TableName("public", "Bestellungen 2024_ü"), AT) == (
        "public.Bestellungen 2024_ü/2024-02-29T12-34-56"
    )


@pytest.mark.parametrize("names", [("..", "a/b"), ("x" * 63, "日" * 21), ("/" * 63, "\x01" * 63)])
def test_a_folder_of_any_name_can_be_made(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = tmp_path / LAYOUT.folder("s", TableName(*names), AT)
    folder.mkdir(parents=True)
    assert folder.resolve().parent.parent == tmp_path.resolve()


_times = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))


@settings(max_examples=200, deadline=None)
@given(times=st.lists(_times, min_size=2, max_size=20), hours=st.integers(-12, 12))
def test_timestamps_of_a_table_grow(times: list[datetime], hours: int) -> None:
    """Whatever the clock does, and wherever it is."""
    last: datetime | None = None
    folders = []
    for now in times:
        batch = next_batch(now.astimezone(timezone(timedelta(hours=hours))), last)
        assert batch.tzinfo is None
        assert batch >= now.replace(microsecond=0, tzinfo=None)
        assert last is None or batch > last
        folders.append(LAYOUT.folder("s", TableName("public", "t"), batch))
        last = batch
    assert folders == sorted(set(folders))
    assert all(LAYOUT.is_batch(folder) for folder in folders)


def test_a_folder_that_is_no_batch_is_told_apart() -> None:
    assert not LAYOUT.is_batch("public.t/archive")
    assert not LAYOUT.is_batch("public.t/2024-02-30T12-34-56")
    other = Layout("{schema}/{table}/{timestamp}", "YYYYMMDD%HHmmss")
    assert other.folder("s", TableName("a", "b"), AT) == "a/b/20240229%123456"
    assert other.is_batch("a/b/20240229%123456")


def test_the_changes_beside_a_copy_have_another_folder_than_the_copy() -> None:
    """Also when a process that knows nothing of it yet hands it over within the same second."""
    nobody, table = cast(Connection, None), TableName("public", "t")
    registry = Registry("cdc_registry", "p", "d", enabled=False)
    registry.look_again(nobody, table, AT)
    assert next_batch(AT.replace(tzinfo=UTC), registry.last(nobody, table).batch) > AT

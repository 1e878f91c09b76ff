"""A full disk: the capture pauses and says so, lets the server go, and goes on by itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.capture import process, state
from penstock.capture.launch import CaptureProcess
from penstock.spool.manifest import Manifest
from penstock.spool.writer import captured_by
from tests.bed import Database, fill
from tests.capture.running import captured, eventually, running, spec_for

NOTES = "create table notes (id int primary key, note text); create publication p for table notes"
MUCH = "insert into notes select g, repeat(md5(g::text), 40) from generate_series(1, 30000) g"
"""More than waits in memory."""


def test_a_full_disk_pauses_the_capture_and_loses_nothing(database: Database, small_disk: Path) -> None:
    database.execute(NOTES)
    spool = small_disk / "spool"
    with running(spec_for(database, spool)) as capture:
        database.execute("insert into notes values (0, 'before')")
        capture.until_past(database)
        filler = fill(small_disk)
        database.execute(MUCH)
        capture.until_state("paused")
        assert capture.error is None
        filler.unlink()
        capture.until_past(database)
    assert len(captured(spool)) == 30001


def test_a_server_shuts_down_promptly_though_the_disk_is_full_and_the_state_says_why(
    own_database: Database, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LET_GO", 1.0)
    own_database.execute(NOTES)
    spool = small_disk / "spool"
    with running(spec_for(own_database, spool)) as capture:
        capture.until_past(own_database)
        filler = fill(small_disk)
        own_database.execute(MUCH)
        reported = capture.until_state("paused")
        assert reported["error"]["kind"] == "SpoolFull"
        own_database.server.stop("fast")  # raises if it takes more than pg_ctl's 60 seconds
        assert capture.state == "paused"
        assert captured_by(spool), "the spool is let go of, and the state counts for nothing"
        own_database.server.start()
        filler.unlink()
        capture.until_past(own_database)
    assert len(captured(spool)) == 30000


def test_consumers_that_go_on_make_room(
    database: Database, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool itself has filled the disk: a destination was away."""
    monkeypatch.setattr(process, "LET_GO", 1.0)
    database.execute(NOTES)
    spool = small_disk / "spool"
    spec = spec_for(database, spool, ack="destination", consumers=("slow",))
    with running(spec) as capture, closing(Manifest.open(spool)) as manifest:
        fill(small_disk, but=2 << 20)
        number = 0
        while capture.state != "paused":
            rows = f"generate_series({number} * 1000 + 1, {number + 1} * 1000) g"
            database.execute(f"insert into notes select g, md5(g::text) || md5(random()::text) from {rows}")
            number += 1
        manifest.advance("slow", manifest.position)
        capture.until_state("streaming")
        capture.until_past(database)


def test_a_start_on_a_full_disk_waits_for_room_and_says_so(database: Database, small_disk: Path) -> None:
    database.execute(NOTES)
    spec = spec_for(database, small_disk / "spool")
    with running(spec) as capture:
        capture.until_past(database)
    filler = fill(small_disk)
    process = CaptureProcess(spec)
    try:
        eventually(lambda: state.read(spec.spool).get("state") == "paused")
        assert state.read(spec.spool)["error"]["kind"] == "SpoolFull"
        filler.unlink()
        database.execute("insert into notes values (1, 'after')")
        eventually(lambda: [change.after for change in captured(spec.spool)])
    finally:
        process.close()

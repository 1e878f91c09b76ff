from __future__ import annotations

import errno
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model import Lsn
from penstock.model.errors import PositionGone, SpoolFull, SpoolInUse, SpoolUnreachable, WrongSpool
from penstock.spool import segment
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.spool.segment import Segment
from penstock.spool.writer import SpoolWriter, is_captured
from tests.spool import killed
from tests.spool.rows import IDENTITY, START, transaction


@contextmanager
def writing(path: Path, segment_bytes: int = 1 << 20) -> Iterator[SpoolWriter]:
    with closing(SpoolWriter(path, IDENTITY, START, segment_bytes)) as writer:
        yield writer


def commits(path: Path, start: Lsn = START, end: Lsn | None = None) -> list[tuple[int, int, int]]:
    """(commit_lsn, seq, table) of all rows between two positions, in the order of the stream."""
    with closing(Manifest.open(path)) as manifest:
        found: list[tuple[int, int, int]] = []
        for entry in manifest.entries(start, end or manifest.position):
            for part in entry.segment.parts:
                for batch in segment.read(path / entry.segment.file, part):
                    columns = ("commit_lsn", "seq", "table_id")
                    found += zip(*(batch[name].to_pylist() for name in columns), strict=True)
        return sorted(found)


def test_rows_are_seen_when_their_transaction_has_ended(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append(transaction(0x2000, 1, 2), ended=0, position=None)
        writer.cut()
        assert commits(tmp_path) == []
        writer.append(transaction(0x3000, 1), ended=0, position=Lsn(0x2010))
        writer.cut()
        assert commits(tmp_path) == [(0x2000, 0, 1), (0x2000, 1, 2)]
        assert writer.manifest.position == Lsn(0x2010)


def test_a_transaction_larger_than_memory_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    with writing(tmp_path, segment_bytes=10_000) as writer:
        for _ in range(50):
            writer.append(transaction(0x2000, *range(1, 9), text="y" * 100), 0, None)
            writer.relieve()
        assert len(list(tmp_path.glob("*.arrow"))) > 3
        assert commits(tmp_path) == []
        writer.append(segment.EMPTY, 0, Lsn(0x2010))
        writer.cut()
        assert len(commits(tmp_path)) == 400


def test_a_very_large_row_has_a_segment_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the disk has no room for one of the segments at first."""
    write = segment.write
    refused: list[Path] = []

    def without_room_once(path: Path, batches: Sequence[pa.RecordBatch]) -> Segment:
        if path.stem.endswith("2") and not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, "no room")
        return write(path, batches)

    monkeypatch.setattr(segment, "write", without_room_once)
    with writing(tmp_path, segment_bytes=10_000) as writer:
        for commit, text in ((0x2000, "x"), (0x2010, "x"), (0x2020, "y" * 10_000), (0x2030, "x")):
            writer.append(transaction(commit, 2, text=text), 1, Lsn(commit + 8))
        with pytest.raises(OSError, match="no room"):
            writer.cut()
        assert commits(tmp_path) == []
        writer.cut()
        entries = writer.manifest.entries(START, writer.manifest.position)
        assert [entry.segment.rows for entry in entries] == [2, 1, 1]
    assert commits(tmp_path) == [(commit, 0, 2) for commit in (0x2000, 0x2010, 0x2020, 0x2030)]


def test_rows_of_a_table_are_contiguous_and_in_order(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for commit in range(0x2000, 0x2100, 0x10):
            writer.append(transaction(commit, 3, 1, 2, 1), 4, Lsn(commit + 8))
        writer.cut()
        (entry,) = writer.manifest.entries(START, writer.manifest.position)
        assert [(part.table_id, part.rows) for part in entry.segment.parts] == [(1, 32), (2, 16), (3, 16)]
        rows = [
            row
            for batch in segment.read(tmp_path / entry.segment.file, entry.segment.parts[0])
            for row in batch.select(["commit_lsn", "seq"]).to_pylist()
        ]
        assert rows == sorted(rows, key=lambda row: (row["commit_lsn"], row["seq"]))


def test_a_reader_is_given_whole_transactions_up_to_its_limit(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for commit in (0x2000, 0x3000, 0x4000):
            writer.append(transaction(commit, 1, 1, 1), 3, Lsn(commit + 8))
            writer.cut()
        assert writer.manifest.next_position(START, max_rows=1) == Lsn(0x2008)
        assert writer.manifest.next_position(START, max_rows=6) == Lsn(0x3008)
        assert writer.manifest.next_position(START) == Lsn(0x4008)
        assert commits(tmp_path, Lsn(0x2008), Lsn(0x3008)) == [(0x3000, seq, 1) for seq in range(3)]


def test_the_position_moves_on_without_rows_and_a_reader_stays(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append(segment.EMPTY, 0, Lsn(0x9000))
        writer.cut()
        assert writer.manifest.position == Lsn(0x9000)
        assert writer.manifest.next_position(START) == START


def test_segments_go_when_every_consumer_is_past_them(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for commit in (0x2000, 0x3000):
            writer.append(transaction(commit, 1), 1, Lsn(commit + 8))
            writer.cut()
        writer.manifest.register("slow", START)
        writer.manifest.advance("fast", Lsn(0x3008))
        assert writer.retire(min(writer.manifest.consumers().values())) == 0
        writer.manifest.advance("slow", Lsn(0x2008))
        writer.manifest.advance("slow", Lsn(0x1500))
        assert writer.retire(min(writer.manifest.consumers().values())) == 1
        assert commits(tmp_path, Lsn(0x2008)) == [(0x3000, 0, 1)]
        with pytest.raises(PositionGone, match="the spool begins at 0/2008"):
            writer.manifest.next_position(START)


def test_a_position_from_another_spool_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path) as writer, pytest.raises(PositionGone, match="not the one"):
        writer.manifest.next_position(Lsn(0x8000))


def test_a_spool_never_mixes_two_sources(tmp_path: Path) -> None:
    with writing(tmp_path):
        pass
    other = Identity("7000000000000000002", IDENTITY.database, IDENTITY.slot)
    with pytest.raises(WrongSpool, match=r"belongs to slot .* system 7000000000000000001, not"):
        SpoolWriter(tmp_path, other, START)


def test_a_second_writer_is_told_who_holds_the_spool(tmp_path: Path) -> None:
    with writing(tmp_path):
        assert is_captured(tmp_path)
        with pytest.raises(SpoolInUse, match=r"process \d+ captures"):
            SpoolWriter(tmp_path, IDENTITY, START)
    assert not is_captured(tmp_path)


def write_until_killed(path: Path, point: str) -> None:
    child = subprocess.run([sys.executable, "-m", "tests.spool.killed", point, str(path)], check=False)
    assert child.returncode == -signal.SIGKILL


def segments_on_disk(path: Path) -> set[str]:
    return {found.name for found in path.iterdir() if found.suffix in (".arrow", ".tmp")}


def test_a_writer_killed_while_it_removes_segments_leaves_none_that_nobody_knows(tmp_path: Path) -> None:
    write_until_killed(tmp_path, killed.IN_RETIRE)
    assert len(segments_on_disk(tmp_path)) == 2
    with writing(tmp_path) as writer:
        assert writer.manifest.retired == Lsn(killed.COMMITS[0] + 8)
        assert segments_on_disk(tmp_path) == writer.manifest.files()
    assert commits(tmp_path, Lsn(killed.COMMITS[0] + 8)) == [
        (killed.COMMITS[1], seq, table) for seq, table in killed.ROWS
    ]


@pytest.mark.parametrize("point", killed.POINTS)
def test_a_writer_killed_at_any_point_leaves_whole_transactions(tmp_path: Path, point: str) -> None:
    write_until_killed(tmp_path, point)
    with writing(tmp_path) as writer:
        reached = writer.manifest.position
        ended = [commit for commit in killed.COMMITS if Lsn(commit) < reached]
        assert reached == (Lsn(ended[-1] + 8) if ended else START)
        assert commits(tmp_path) == [(commit, seq, table) for commit in ended for seq, table in killed.ROWS]
        assert segments_on_disk(tmp_path) == writer.manifest.files()
        for commit in killed.COMMITS[len(ended) :]:
            writer.append(killed.rows(commit), len(killed.ROWS), Lsn(commit + 8))
        writer.cut()
    assert commits(tmp_path) == [
        (commit, seq, table) for commit in killed.COMMITS for seq, table in killed.ROWS
    ]


def test_the_name_of_a_segment_is_never_used_again(tmp_path: Path) -> None:
    """A reader may still have it in its plans: what it finds under the name must not be other rows."""
    with writing(tmp_path) as writer:
        writer.append(transaction(START.value + 10, 1), 1, Lsn(START.value + 11))
        writer.cut()
        before = writer.manifest.files()
        assert writer.retire(writer.recorded) == 1
        assert writer.manifest.files() == set()
    with writing(tmp_path) as writer:
        writer.append(transaction(START.value + 20, 1), 1, Lsn(START.value + 21))
        writer.cut()
        assert not writer.manifest.files() & before


def test_a_manifest_without_room_says_so_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    """A consumer writes it, too: what passes by itself must not end a pipeline."""
    with writing(tmp_path), closing(Manifest.open(tmp_path)) as manifest:
        ((pages,),) = manifest._db.execute("pragma page_count").fetchall()
        manifest._db.execute(f"pragma max_page_count = {pages}")
        with pytest.raises(SpoolFull):
            manifest.register("x" * 100_000, START)
        manifest._db.execute("pragma max_page_count = 10000")
        manifest.register("reader", START)
        manifest._db.execute("pragma busy_timeout = 0")
        other = Manifest.open(tmp_path)
        with closing(other), other.transaction(), pytest.raises(SpoolUnreachable):
            manifest.advance("reader", Lsn(0x2000))
        manifest.advance("reader", Lsn(0x2000))
        assert manifest.consumers() == {"reader": Lsn(0x2000)}


def test_a_manifest_is_closed_beside_threads_that_read_it(tmp_path: Path) -> None:
    """SQLite crashes the process where a connection is closed in the middle of a read."""
    with writing(tmp_path):
        pass

    def read(manifest: Manifest) -> None:
        while True:
            manifest.consumers()

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            manifest = Manifest.open(tmp_path)
            readers = [threads.submit(read, manifest) for _ in range(2)]
            time.sleep(0.02)
            manifest.close()
            assert all(isinstance(reader.exception(), sqlite3.ProgrammingError) for reader in readers)

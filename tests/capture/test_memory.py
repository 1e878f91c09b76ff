"""What rows take that are so large that every copy of one counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.capture.launch import CaptureProcess
from penstock.model import Lsn
from penstock.spool import manifest
from penstock.spool.changes import changes
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import eventually, spec_for

ROWS = 2
MEGABYTES = 120
"""Of a row. libpq's buffer grows to the next power of two, and stays as large."""
COPIES = 3.4
"""One in libpq's buffer, one as libpq gave it out or as it was read back, one decoded; then what that is
compressed to instead of the second."""


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """How many bytes are resident, looked at all the while."""
    process, over, sizes = psutil.Process(pid), threading.Event(), []

    def look() -> None:
        while not over.wait(0.001):
            sizes.append(process.memory_info().rss)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield sizes
    finally:
        over.set()
        watcher.join()


def wait_for(spool: Path, database: Database) -> None:
    ((end,),) = database.query("select pg_logical_emit_message(true, 'sentinel', '')::text")
    eventually(lambda: (manifest.position(spool) or Lsn(0)) > Lsn.parse(end), seconds=120)


@pytest.mark.parametrize("streaming", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_of_a_large_row_no_more_copies_are_held_than_must_be(
    database: Database, tmp_path: Path, streaming: bool
) -> None:
    """The values are not to be compressed: what is written of them is as large as they are."""
    database.execute(
        f"alter database {database.name} set logical_decoding_work_mem = '1MB'",
        "create table large (id int primary key, v text); alter table large alter v set storage external",
        "create publication p for table large",
        "create table megabyte as select string_agg(md5(g || random()::text), '') as v"
        " from generate_series(1, 32768) g",
    )
    spec = spec_for(database, tmp_path, streaming=streaming)
    with closing(CaptureProcess(spec)) as capture:
        capture.wait_until_captured()
        database.execute("insert into large select -g, repeat('x', 2000) from generate_series(1, 1000) g")
        wait_for(tmp_path, database)
        assert "/pandas/" not in Path(f"/proc/{capture.pid}/maps").read_text(), "45 MB that nobody uses"
        base = psutil.Process(capture.pid).memory_info().rss
        with watched(capture.pid) as sizes:
            for row in range(ROWS):
                database.execute(f"insert into large select {row}, repeat(v, {MEGABYTES}) from megabyte")
            wait_for(tmp_path, database)
    assert max(sizes) - base < COPIES * (MEGABYTES << 20)
    with closing(Manifest.open(tmp_path)) as opened:
        captured = [
            (change.after[0], len(change.after[1] or ""))
            for change in changes(opened, opened.retired, opened.position)
            if change.table is not None and change.after and int(change.after[0] or -1) >= 0
        ]
    assert captured == [(str(row), MEGABYTES << 20) for row in range(ROWS)]

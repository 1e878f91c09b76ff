"""Random transactions, random kills: what is in the spool is what happened, in order, once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from penstock.capture import launch
from penstock.capture.launch import CaptureProcess
from penstock.model.errors import CaptureKilled
from penstock.spool import manifest
from tests.bed import Database
from tests.capture.running import eventually, running, spec_for
from tests.checker import Ledger, Replica, changes_of_spool
from tests.scenario import Workload


def wait_until_it_moves(spool: Path) -> None:
    begin = manifest.position(spool)
    eventually(lambda: manifest.position(spool) != begin)


def check_through_kills(database: Database, spool: Path, seed: int, kills: int) -> None:
    workload = Workload(database, seed).create("p")
    conninfo = make_conninfo(database.dsn, options="-c logical_decoding_work_mem=64kB")
    spec = spec_for(database, spool, conninfo=conninfo)
    ledger = Ledger(database, "p").create()
    chance = random.Random(seed)
    with running(spec):
        pass
    with workload.running(writers=2):
        for kill in range(kills):
            process = CaptureProcess(spec)
            process.wait_until_captured()
            if kill % 3:
                wait_until_it_moves(spool)
            time.sleep(chance.uniform(0, 0.5))
            process.kill()
    with running(spec) as capture:
        capture.until_past(database)
    changes = list(changes_of_spool(spool))
    assert len(changes) > 100
    difference = ledger.difference(changes)
    assert not difference, difference
    difference = Replica(changes).difference(database, workload.tables)
    assert not difference, difference


def test_a_capture_killed_at_random_moments_misses_and_doubles_nothing(
    database: Database, tmp_path: Path
) -> None:
    check_through_kills(database, tmp_path, seed=1, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_a_capture_killed_many_times_misses_and_doubles_nothing(
    database: Database, tmp_path: Path, seed: int
) -> None:
    check_through_kills(database, tmp_path, seed, kills=20)


def test_a_capture_that_was_killed_may_be_started_again(database: Database, tmp_path: Path) -> None:
    """Also before it has begun: what ended it is not the user's mistake."""
    process = CaptureProcess(spec_for(database, tmp_path))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(CaptureKilled, match="signal 9") as told:
        process.wait_until_captured()
    assert told.value.retry
    process.close()


def test_a_capture_that_does_not_stop_is_killed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP", 0.2)
    process = CaptureProcess(spec_for(database, tmp_path))
    os.kill(process.pid, signal.SIGSTOP)
    process.close()
    assert not Path("/proc", str(process.pid)).exists()

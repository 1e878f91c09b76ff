"""Positions of the source told as times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from penstock.model import Lsn
from penstock.pipeline.clock_readings import MARGIN, ClockReadings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def readings() -> ClockReadings:
    made = ClockReadings()
    for number in range(10):
        made.note(NOON + timedelta(seconds=number), Lsn(100 * number))
    return made


def test_a_position_has_the_time_of_the_last_reading_that_it_has_passed() -> None:
    assert ClockReadings().complete_through(Lsn(5)) is None
    assert readings().complete_through(Lsn(299)) == NOON + timedelta(seconds=2) - MARGIN
    assert readings().complete_through(Lsn(300)) == NOON + timedelta(seconds=3) - MARGIN


def test_a_reading_may_come_from_another_thread_while_one_is_looked_for() -> None:
    clock = readings()

    class Interrupted(Lsn):
        def __ge__(self, other: Lsn) -> bool:
            thread.submit(clock.note, NOON, Lsn(2000)).result(timeout=30)
            return self.value >= other.value

    with ThreadPoolExecutor(1) as thread:
        assert clock.complete_through(Interrupted(150)) == NOON + timedelta(seconds=1) - MARGIN

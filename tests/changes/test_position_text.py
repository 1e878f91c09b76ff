"""Positions and times as text, beside what Python writes."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.position_text import lsn_text, time_text
from penstock.model import Lsn

_times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), timezones=st.just(UTC))
_leap_days = st.builds(
    datetime, st.sampled_from([4, 1900 - 4, 2000, 2024]), st.just(2), st.just(29), tzinfo=st.just(UTC)
)


@given(lsns=st.lists(st.integers(0, 2**63 - 1)))
def test_positions_have_all_their_digits(lsns: list[int]) -> None:
    texts = lsn_text(np.array(lsns, np.int64)).to_pylist()
    assert texts == [f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}" for lsn in lsns]
    assert [Lsn.parse(text).value for text in texts] == lsns


@given(times=st.lists(_times | _leap_days), cut=st.integers(0, 3))
def test_times_are_as_python_writes_them(times: list[datetime], cut: int) -> None:
    column = pa.array(times, pa.timestamp("us", tz="UTC")).slice(cut)
    expected = [time.isoformat(timespec="microseconds").replace("+00:00", "Z") for time in times[cut:]]
    assert time_text(column).to_pylist() == expected

"""Positions and times of transactions as text of a fixed length, a column at a time.

Compiled code writes them: where transactions are small, each change has another.

Runs on executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.compiled import Bytes, Int64s, kernel

_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_LSN = np.frombuffer(b"00000000/00000000", np.uint8)
_TIME = np.frombuffer(b"0000-00-00T00:00:00.000000Z", np.uint8)
_SECOND, _MINUTE, _HOUR, _DAY = 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6
_DAYS_OF_400_YEARS = 146_097
_DAYS_BEFORE_1970 = 719_468
"""Since the first of March of the year 0: a year that begins in March has the day that may lack at its
end."""


def lsn_text(lsns: Int64s) -> pa.StringArray:
    """Return positions as `0000000A/01B2C3D4`: PostgreSQL reads it, and text sorts as the numbers do."""
    letters = np.tile(_LSN, (len(lsns), 1))
    _write_lsns(lsns, letters)
    return fixed_text(letters)


def time_text(times: pa.TimestampArray) -> pa.StringArray:
    """Return times of the years 1 to 9999 in UTC, to the microsecond, as `2026-01-02T03:04:05.678901Z`."""
    letters = np.tile(_TIME, (len(times), 1))
    _write_times(np.asarray(times.cast(pa.int64())), letters)
    return fixed_text(letters)


def fixed_text(letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return rows of letters, all of one length, as text."""
    count, width = letters.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(letters)))


@kernel
def _write_lsns(lsns: Int64s, letters: Bytes) -> None:
    for row in range(len(lsns)):
        for digit in range(8):
            letters[row, digit] = _DIGITS[(lsns[row] >> (60 - 4 * digit)) & 15]
            letters[row, digit + 9] = _DIGITS[(lsns[row] >> (28 - 4 * digit)) & 15]


@kernel
def _write_times(times: Int64s, letters: Bytes) -> None:
    for row in range(len(times)):
        day, within = times[row] // _DAY + _DAYS_BEFORE_1970, times[row] % _DAY
        since_era = day % _DAYS_OF_400_YEARS
        year = (since_era - since_era // 1460 + since_era // 36_524 - since_era // 146_096) // 365
        since_march = since_era - (365 * year + year // 4 - year // 100)
        month = (5 * since_march + 2) // 153
        _write(letters, row, 0, 4, year + 400 * (day // _DAYS_OF_400_YEARS) + (month >= 10))
        _write(letters, row, 5, 2, month + 3 if month < 10 else month - 9)
        _write(letters, row, 8, 2, since_march - (153 * month + 2) // 5 + 1)
        _write(letters, row, 11, 2, within // _HOUR)
        _write(letters, row, 14, 2, within // _MINUTE % 60)
        _write(letters, row, 17, 2, within // _SECOND % 60)
        _write(letters, row, 20, 6, within % _SECOND)


@kernel
def _write(letters: Bytes, row: int, first: int, digits: int, number: int) -> None:
    for place in range(first + digits - 1, first - 1, -1):
        letters[row, place] = _DIGITS[number % 10]
        number //= 10

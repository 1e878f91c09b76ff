from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from penstock.config.quantities import Megabytes, Seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("200ms", 0.2), ("1s", 1), ("5m", 300), ("1.5 h", 5400), ("2d", 172800), (3, 3), (0.5, 0.5), ("7", 7)],
)
def test_durations_as_people_write_them(written: object, seconds: float) -> None:
    assert TypeAdapter(Seconds).validate_python(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "size"),
    [("500MB", 500 * 10**6), ("64 MiB", 2**26), ("1gb", 10**9), (500, 500 * 10**6), ("1.5GiB", 3 * 2**29)],
)
def test_sizes_as_people_write_them(written: object, size: int) -> None:
    assert TypeAdapter(Megabytes).validate_python(written) == size


@pytest.mark.parametrize("written", ["", "s", "-1s", "5 parsecs", "1 2s", True, None, -1, [1], "1e9s", "nan"])
def test_what_is_no_duration_says_what_one_is(written: object) -> None:
    with pytest.raises(ValidationError, match="such as 200ms, 10s, 5m or 1h"):
        TypeAdapter(Seconds).validate_python(written)


@pytest.mark.parametrize("written", ["0MB", "MB", "12 stone", False])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Megabytes).validate_python(written)

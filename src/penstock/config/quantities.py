"""Sizes and durations as people write them: `500MB`, `64 MiB`, `5m`, `200ms`.

A plain number has the unit that the key implies: seconds for a duration, megabytes where the key ends in
`_mb`. What a program reads is always plain: seconds as a float, bytes as an int. Every number has a limit:
what is beyond it is a slip of the pen, and would end in an error that nobody understands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")

SECONDS: Mapping[str, float] = {
    "ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400,
}  # fmt: skip
BYTES: Mapping[str, float] = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


LONGEST = 30 * 86400.0
LARGEST = 10.0**12


def _quantity(
    units: Mapping[str, float], plain: str, most: float, expected: str
) -> Callable[[object], float]:
    def read(value: object) -> float:
        match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
        unit = units.get(match[2].lower() or plain) if match else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            amount, unit = value, units[plain]
        elif match and unit:
            amount = float(match[1])
        else:
            raise ValueError(f"expected {expected}")
        if not 0 <= amount <= most / unit:  # false for NaN, too
            raise ValueError(f"expected {expected}, from 0 to {LIMITS[most]}")
        return amount * unit

    return read


def _whole(value: object) -> object:
    """YAML reads `yes` and `on` as true, and Python takes that for 1."""
    unfit = isinstance(value, float) and not value.is_integer()
    if isinstance(value, bool) or unfit or (isinstance(value, str) and len(value) > 30):
        raise ValueError("expected a whole number")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError("expected a number")
    return value


def _for_editors(units: Mapping[str, float], plain: str, most: float, expected: str) -> dict[str, Any]:
    """Return what a JSON schema says of it. Its regular expressions cannot ignore case, and editors would
    show them, unless told what to say."""
    either_case = ("".join(f"[{letter}{letter.upper()}]" for letter in unit) for unit in units)
    written = rf"^\s*([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*({'|'.join(either_case)})?\s*$"
    return {
        "anyOf": [
            {"type": "string", "pattern": written, "patternErrorMessage": f"expected {expected}"},
            {"type": "number", "minimum": 0, "maximum": most // units[plain]},
        ]
    }


LIMITS = {LONGEST: "30d", LARGEST: "1TB"}
_A_DURATION, _A_SIZE = "a duration such as 200ms, 10s, 5m or 1h", "a size such as 500MB or 64 MiB"
DURATION = _for_editors(SECONDS, "s", LONGEST, _A_DURATION)
SIZE = _for_editors(BYTES, "mb", LARGEST, _A_SIZE)

Whole = Annotated[int, BeforeValidator(_whole)]
"""A number of things; its field says how many at most."""
Number = Annotated[float, BeforeValidator(_number)]
Seconds = Annotated[
    float,
    BeforeValidator(_quantity(SECONDS, "s", LONGEST, _A_DURATION)),
    WithJsonSchema(DURATION),
]
Megabytes = Annotated[
    int,
    BeforeValidator(lambda given: round(_megabytes(given))),
    Field(gt=0),
    WithJsonSchema(SIZE),
]
"""Bytes, where a plain number means megabytes."""

_megabytes = _quantity(BYTES, "mb", LARGEST, _A_SIZE)

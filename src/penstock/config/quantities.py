"""Sizes and durations as people write them: `500MB`, `64 MiB`, `5m`, `200ms`.

A plain number has the unit that the key implies: seconds for a duration, megabytes where the key ends in
`_mb`. What a program reads is always plain: seconds as a float, bytes as an int.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")

SECONDS: Mapping[str, float] = {
    "ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400,
}  # fmt: skip
BYTES: Mapping[str, float] = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def _quantity(units: Mapping[str, float], plain: str, expected: str) -> Callable[[object], float]:
    def read(given: object) -> float:
        if isinstance(given, int | float) and not isinstance(given, bool) and given >= 0:
            return given * units[plain]
        found = _WRITTEN.fullmatch(given) if isinstance(given, str) else None
        unit = found and units.get(found[2].lower() or plain)
        if not found or not unit:
            raise ValueError(f"expected {expected}")
        return float(found[1]) * unit

    return read


Seconds = Annotated[
    float, BeforeValidator(_quantity(SECONDS, "s", "a duration such as 200ms, 10s, 5m or 1h"))
]
Megabytes = Annotated[
    int,
    BeforeValidator(lambda given: round(_megabytes(given))),
    Field(gt=0),
]
"""Bytes, where a plain number means megabytes."""

_megabytes = _quantity(BYTES, "mb", "a size such as 500MB or 64 MiB")

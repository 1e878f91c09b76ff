"""Compressed files: gzip by zlib-ng (and by isal where speed counts more than size), zstd, or none.

What one `Compressor` makes is whole by itself (a member of gzip, a frame of zstd), and several behind each
other are one valid file: so many tasks can write one file's parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import zstandard
from isal import isal_zlib
from zlib_ng import zlib_ng

Algorithm = Literal["gzip", "zstd", "none"]

GZIP_WINDOW = 31
"""zlib's way to ask for gzip's own header."""
BEST = 7
"""zlib-ng's own best for rows: 8 takes half as long again for 0.3 % less, 9 makes them a tenth larger."""
FAST = 3
"""Up to this level isal compresses: five times as fast as zlib-ng, a quarter larger."""


class Compressor(Protocol):
    def compress(self, data: Any, /) -> bytes: ...
    def flush(self) -> bytes: ...


@dataclass(slots=True)
class Meter:
    """What went into compressors, and what they needed for it."""

    size: int = 0
    seconds: float = 0.0
    """Of CPU."""

    def count(self, block: bytes | memoryview, since: float) -> None:
        self.size += memoryview(block).nbytes
        self.seconds += time.thread_time() - since


class _Plain:
    def compress(self, data: Any) -> bytes:
        return bytes(data)

    def flush(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class Compression:
    algorithm: Algorithm
    level: int

    @property
    def suffix(self) -> str:
        return {"gzip": ".gz", "zstd": ".zst", "none": ""}[self.algorithm]

    def compressor(self) -> Compressor:
        if self.algorithm == "zstd":
            return zstandard.ZstdCompressor(level=self.level).compressobj()
        if self.algorithm == "none":
            return _Plain()
        if self.level <= FAST:
            compressor: Compressor = isal_zlib.compressobj(self.level, isal_zlib.DEFLATED, GZIP_WINDOW)
            return compressor
        return zlib_ng.compressobj(min(self.level, BEST), zlib_ng.DEFLATED, GZIP_WINDOW)

    def compressed(self, blocks: Iterable[bytes | memoryview], meter: Meter | None = None) -> Iterator[bytes]:
        """Yield the blocks compressed as one stream, a little at a time."""
        compressor, meter = self.compressor(), meter or Meter()
        for block in blocks:
            since = time.thread_time()
            data = compressor.compress(block)
            meter.count(block, since)
            if data:
                yield data
        since = time.thread_time()
        data = compressor.flush()
        meter.count(b"", since)
        yield data

"""When a batch begins, and where it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.model import Lsn
from penstock.spark import ranges
from penstock.spark.ranges import RangeReader, end_of
from penstock.spool.manifest import Manifest
from penstock.spool.writer import SpoolWriter
from tests.spool.rows import IDENTITY, START, transaction


def committed(writer: SpoolWriter, at: int, rows: int = 1) -> str:
    """A transaction in a segment of its own; where that ends."""
    batch = transaction(at, 5)
    writer.append(pa.concat_batches([batch] * rows), rows, Lsn(at + 1))
    writer.cut()
    return str(Lsn(at + 1))


def test_a_batch_begins_after_the_interval_or_when_there_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "LONG_POLL", 0.05)
    writer = SpoolWriter(tmp_path, IDENTITY, START)
    options = {"spool": str(tmp_path), "start": str(START), "maxRows": "15000", "maxBytes": "100000000"}

    def reader(interval: float) -> RangeReader:
        made = RangeReader(options | {"interval": str(interval)})
        made._open = Manifest.open(tmp_path)
        return made

    def next_of(reader: RangeReader, position: str) -> str:
        return reader.latestOffset({"lsn": position}, ReadAllAvailable())["lsn"]

    slow, quick = reader(interval=60), reader(interval=0)
    assert next_of(slow, str(START)) == str(START), "there is nothing"
    first = committed(writer, 0x2000)
    assert next_of(slow, str(START)) == first, "the first does not wait"
    second = committed(writer, 0x3000)
    assert next_of(slow, first) == first, "the interval has not passed"
    assert next_of(quick, first) == second
    third = committed(writer, 0x4000, rows=ranges.ENOUGH_ROWS)
    assert next_of(slow, first) == third, "enough to begin at once"
    committed(writer, 0x5000, rows=ranges.ENOUGH_ROWS)
    fourth = committed(writer, 0x6000, rows=ranges.ENOUGH_ROWS)
    assert next_of(quick, third) < fourth, "no more than maxRows"
    writer.close()


def test_where_a_batch_ends_is_in_sparks_own_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0}\n' + json.dumps({"lsn": "0/2001"}))
    assert end_of(tmp_path, 7) == Lsn(0x2001)

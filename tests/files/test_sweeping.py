"""Old files are looked for at each source."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.destinations.files import target
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import Storage
from penstock.destinations.files.target import FilesTarget
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration


def test_one_source_does_not_keep_the_files_of_another(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def expire(_storage: Storage, records: SourceRecords, _days: float) -> None:
        looked_at.append(records.stream.source)

    monkeypatch.setattr(target, "expire", expire)
    sources = [{"name": name, "dsn": source.dsn} for name in ("eu", "us")]
    config = load(configuration(tmp_path, source, to_files(tmp_path / "files"), sources=sources))
    files = FilesTarget(config, config.destinations[0])
    for _ in range(3):
        for records in files._records.values():
            files._clean_up(records)
    assert looked_at == ["eu", "us"]

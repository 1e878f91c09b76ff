"""What is kept and what room is left, and the newest files, in /status, in the metrics and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.config import Config, load
from penstock.destinations.files.recent_files import NEWEST
from penstock.destinations.files.registry import Registry
from penstock.postgres.connection import connect
from tests.bed import Database
from tests.monitoring.asking import Served, served
from tests.monitoring.test_dashboard import CHROMIUM, opened, url
from tests.pipeline.running import configuration

WRITTEN = 30
FILE = """
insert into cdc_registry.file_log (table_name, batch_timestamp, file_path, file_type, start_lsn, end_lsn,
                                   row_count, file_size_bytes, sha256)
select 'public.orders', now(), format('public.orders/%s/streaming.csv.gz', n), 'streaming', '0/1',
       '0/1'::pg_lsn + n, 10 * n, 2048, repeat('0', 64)
from generate_series(1, {}) n
"""


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    files = {"name": "copy", "type": "files", "base_path": str(tmp_path / "files")}
    return load(configuration(tmp_path, database, files, monitoring={"port": 0}), {})


@pytest.fixture
def written(config: Config, database: Database, store: object) -> Iterator[Served]:
    """A pipeline that has written files."""
    assert store
    Path(config.spool.path, "test", "source").mkdir(parents=True)
    with connect(database.dsn) as connection:
        Registry("cdc_registry", "test", "copy").create(connection)
    database.execute(FILE.format(WRITTEN))
    with served(config) as http:
        http.ask.until("/status", lambda answer: "sources" in answer.document)
        yield http


def test_the_newest_files_and_the_room_are_told(written: Served) -> None:
    status = written.ask("/status").document
    files = status["destinations"][0]["files"]
    assert (files["count"], files["bytes"], len(files["recent"])) == (WRITTEN, WRITTEN * 2048, NEWEST)
    newest = files["recent"][0]
    assert newest.pop("at") > "2026"
    assert newest == {
        "source": "source",
        "table": "public.orders",
        "type": "streaming",
        "path": f"public.orders/{WRITTEN}/streaming.csv.gz",
        "rows": 10 * WRITTEN,
        "bytes": 2048,
    }
    assert status["state"]["bytes"] > 0
    room = status["sources"][0]["capture"]["room_bytes"]
    assert room > 0
    assert b"penstock_spool_room_bytes{" in written.ask("/metrics").body


def test_a_registry_that_is_gone_takes_nothing_else_with_it(written: Served, database: Database) -> None:
    database.execute("drop schema cdc_registry cascade")
    written.ask.until("/status", lambda a: not a.document["destinations"][0]["files"]["recent"])
    assert written.ask("/status").document["sources"][0]["error"] is None


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)")
def test_they_are_on_the_page(written: Served) -> None:
    with opened(url(written), 360) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        newest = page.locator("#files tr").first
        expect(newest).to_contain_text(f"public.orders/{WRITTEN}/streaming.csv.gz")
        expect(newest).to_contain_text("2.0 kB")
        expect(page.locator("#kept")).to_contain_text(f"{WRITTEN} files")
        expect(page.locator("#kept")).to_contain_text("spool")

"""What is kept and what room is left, and the newest files, in /status, in the metrics and on the page."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from penstock.config import Config, load
from penstock.destinations.files.recent_files import NEWEST
from penstock.destinations.files.registry import Registry
from penstock.model import Lsn
from penstock.monitoring.observing import Heart
from penstock.postgres.connection import connect
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.spool.segment import Segment
from tests.bed import Database
from tests.monitoring.asking import Answer, Served, served
from tests.monitoring.test_alerts import documented
from tests.monitoring.test_dashboard import CHROMIUM, opened, url
from tests.pipeline.running import configuration

WRITTEN = 30
FILE = """
insert into cdc_registry.file_log (table_name, batch_timestamp, file_path, file_type, start_lsn, end_lsn,
                                   row_count, file_size_bytes, sha256)
select 'public.orders', now() + make_interval(secs => n), format('public.orders/%s/streaming.csv.gz', n),
       'streaming', '0/1', '0/1'::pg_lsn + n, 10 * n, 2048, repeat('0', 64)
from generate_series(1, {}) n
"""

CONSUMERS = """
insert into cdc_registry.consumers (consumer, table_name, last_lsn)
values ('late', 'public.orders', '0/5'), ('all', 'public.orders', 'F/0')
"""

BATCH = {"level": "debug", "source": "source", "destination": "copy"}
SIZES = {
    **{"event": "files written", "type": "streaming", "files": 2},
    **{"bytes": 100, "uncompressed_bytes": 870, "compression_seconds": 0.5},
}


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    files = {"name": "copy", "type": "files", "base_path": str(tmp_path / "files")}
    return load(configuration(tmp_path, database, files, monitoring={"port": 0}), {})


@pytest.fixture
def spool(config: Config) -> Path:
    """A spool with a change, 100 seconds old, that the destination has not confirmed and a query has."""
    spool = Path(config.spool.path, "test", "source")
    with closing(Manifest.create(spool, Identity("1", "database", "slot"), Lsn(0x100))) as manifest:
        manifest.register("copy", Lsn(0x100))
        (spool / "00000001.arrow").write_bytes(b"change")
        os.utime(spool / "00000001.arrow", (time.time() - 100,) * 2)
        manifest.record(Lsn(0x200), [Segment("00000001.arrow", 1, 6, ())], [])
        manifest.register("query", Lsn(0x200))
    return spool


@pytest.fixture
def written(config: Config, database: Database, store: object, spool: Path) -> Iterator[Served]:
    """A pipeline that has written files, of which one consumer has read all but some, another all."""
    assert store
    assert spool.exists()
    with connect(database.dsn) as connection:
        Registry("cdc_registry", "test", "copy").create(connection)
    database.execute(FILE.format(WRITTEN), CONSUMERS)
    with served(config) as http:
        http.ask.until("/status", lambda answer: "sources" in answer.document)
        yield http


def test_the_newest_files_and_the_room_are_told(written: Served) -> None:
    status = written.ask("/status").document
    files = status["destinations"][0]["files"]
    assert (files["count"], files["bytes"], len(files["recent"])) == (WRITTEN, WRITTEN * 2048, NEWEST)
    assert (files["folders"], files["compression_ratio"]) == (WRITTEN, None)
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
    capture = status["sources"][0]["capture"]
    assert 0 < capture["room_bytes"] < capture["disk_bytes"]


def test_files_are_counted_for_prometheus(written: Served) -> None:
    written.observer.events.take(BATCH | SIZES)
    written.ask.until("/status", lambda a: a.document["destinations"][0]["files"]["compression_ratio"] == 8.7)
    body = written.ask("/metrics").body.decode()
    samples = {
        (sample.name.removeprefix("penstock_"), *(sample.labels[key] for key in sorted(sample.labels))): (
            sample.value
        )
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    kind = ("copy", "source", "public.orders", "streaming")
    assert samples["files", *kind] == WRITTEN
    assert samples["files_bytes", *kind] == WRITTEN * 2048
    assert samples["files_folders", *kind[:3]] == WRITTEN
    assert abs(samples["files_last_timestamp_seconds", *kind] - time.time()) < 100
    assert samples["files_oldest_unprocessed_seconds", "all", "copy", "source"] == 0
    assert 0 < samples["files_oldest_unprocessed_seconds", "late", "copy", "source"] < 100
    assert samples["files_compression_ratio", "copy", "source", "streaming"] == 8.7
    assert samples["files_written_total", "copy", "source", "streaming"] == 2
    assert 100 <= samples["oldest_unacknowledged_seconds", "copy", "destination", "source"] < 200
    assert samples["oldest_unacknowledged_seconds", "query", "other", "source"] == 0


def test_every_documented_number_is_there(written: Served) -> None:
    written.observer.heart = Heart(os.getpid())
    body = written.ask.until("/metrics", lambda answer: b"memory_bytes" in answer.body).body.decode()
    given = set(re.findall(r"(?m)^# TYPE (penstock_\w+)", body))
    assert {name for name in given if not name.endswith("_created")} == documented()


def test_a_registry_that_is_gone_takes_nothing_else_with_it(written: Served, database: Database) -> None:
    database.execute("drop schema cdc_registry cascade")
    written.ask.until("/status", lambda a: not a.document["destinations"][0]["files"]["recent"])
    assert written.ask("/status").document["sources"][0]["error"] is None


def test_a_registry_that_is_locked_is_a_condition(written: Served, database: Database) -> None:
    def holds(answer: Answer) -> bool:
        conditions = {each["name"]: each["ok"] for each in answer.document["conditions"]}
        return bool(conditions["registry:source"])

    assert holds(written.ask("/ready"))
    with database.connect() as other, other.transaction():
        other.execute("lock table cdc_registry.file_log in access exclusive mode")
        written.ask.until("/ready", lambda answer: not holds(answer))
    written.ask.until("/ready", holds)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)")
def test_they_are_on_the_page(written: Served) -> None:
    written.observer.events.take(BATCH | SIZES)
    written.observer.events.take(BATCH | {"event": "batch", "seconds": 0.3})
    with opened(url(written), 360) as page:
        expect(page.locator("#flow")).to_contain_text(", took 0.3 s")
        expect(page.locator("#kept")).to_contain_text("compressed 8.7 : 1")
        expect(page.locator("#kept tr").first).to_contain_text(re.compile(r"B of \d.* [GT]B"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        newest = page.locator("#files tr").first
        expect(newest).to_contain_text(f"public.orders/{WRITTEN}/streaming.csv.gz")
        expect(newest).to_contain_text("2.0 kB")
        expect(page.locator("#kept")).to_contain_text(f"{WRITTEN} files in {WRITTEN} folders")
        expect(page.locator("#kept")).to_contain_text("spool")

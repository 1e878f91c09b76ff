"""What docs/debezium.md, failover.md and managed-servers.md promise of slots and rights."""

from __future__ import annotations

import subprocess

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import app
from penstock.model.phases import Phase
from tests.docs.blocks import Block, commands, of_language, on_page
from tests.docs.shop import Shop
from tests.pipeline.running import running


@pytest.mark.slow
def test_debeziums_slot_is_taken_over_without_losing_a_change(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.allow()
    shop.source.execute("create publication dbz_publication for all tables")
    shop.source.query("select pg_create_logical_replication_slot('debezium', 'pgoutput')")
    shop.source.execute("insert into users (id, name) values (1001, 'nobody has read this')")
    _, in_its_place = on_page("debezium.md", "yaml")
    file = shop.save(in_its_place, "shop.yaml")
    monkeypatch.chdir(shop.folder)
    for name, value in shop.leads.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_BATCH_CONTROL__INTERVAL", "50ms")
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.users")
        shop.source.execute("insert into users (id, name) values (1002, 'nor this')")
        pipeline.until(lambda: _delivered(shop) == 2)
    assert shop.source.query("select slot_name from pg_replication_slots") == [("debezium",)]


def _delivered(shop: Shop) -> int:
    rows = shop.source.query(
        "select coalesce(sum(row_count), 0)::int from cdc_registry.file_log"
        " where table_name = 'public.users' and file_type in ('streaming', 'full_reload')"
    )
    return int(rows[0][0])


def test_a_slot_is_made_one_for_failover_by_the_pipelines_role(shop: Shop) -> None:
    shop.source.execute("create role cdc login replication")
    shop.source.query("select pg_create_logical_replication_slot('penstock_shop_eu', 'pgoutput')")
    (words,) = [words for block in on_page("failover.md", "console") for words in commands(block)]
    connection = words[1].replace("host=db.example.com", f"host=127.0.0.1 port={shop.server.port}")
    psql = [str(shop.server.bin / words[0]), connection, *words[2:]]
    subprocess.run(psql, check=True, capture_output=True)
    assert shop.source.query("select slot_name, failover from pg_replication_slots") == [
        ("penstock_shop_eu", True)
    ]


GRANTS = [
    (block, words)
    for block in of_language("console", "sh")
    for words in commands(block)
    if words[:2] == ["penstock", "grant"] and block.page.name == "managed-servers.md"
]


@pytest.mark.parametrize(("block", "words"), GRANTS, ids=lambda value: str(value)[:60])
def test_the_rights_are_printed_for_every_provider(
    block: Block, words: list[str], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.source.execute("create role cdc login")
    (configuration,) = on_page(block.page.name, "yaml")
    text = "\n".join(line for line in configuration.text.splitlines() if "ssl" not in line)
    (shop.folder / "shop.yaml").write_text(text)
    monkeypatch.chdir(shop.folder)
    for name, value in shop.leads.items():
        monkeypatch.setenv(name, value)
    arguments = words[1 : words.index(">")] if ">" in words else words[1:]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "grant select on table public.orders to cdc" in done.output

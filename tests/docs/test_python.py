"""The documentation's Python: every block of a page is run here or in the test of that page."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from penstock.embedded.nats import USER, NatsServer
from tests.consumer.producing import Producer
from tests.consumer.staging import items, row
from tests.docs.blocks import BLOCKS, Block, of_language, on_page
from tests.docs.shop import Shop

RUN_HERE = {"README.md", "spark.md", "nats-consumers.md", "python-api.md"}
RUN_ELSEWHERE = {"destination-python.md", "writing-a-destination.md"}
"""In test_destinations.py."""

Names = dict[str, Any]


def test_every_page_with_python_is_run() -> None:
    assert {block.page.name for block in BLOCKS if block.language == "python"} == RUN_HERE | RUN_ELSEWHERE


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_what_is_imported_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.fixture
def reading(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Somebody who has a configuration, and writes Python beside it. Spark's processes have other variables
    and another working directory than a test: the configuration names the server, and paths are absolute."""
    shop.allow()
    (configuration,) = on_page("quickstart.md", "yaml")
    document = yaml.safe_load(configuration.text)
    address = {"host": "127.0.0.1", "port": shop.server.port, "password": "secret"}
    for end in (*document["sources"], *document["destinations"]):
        del end["connection"]["password_env"]
        end["connection"] |= address
    document |= {
        "spool": {"path": str(shop.folder / "spool")},
        "state": {"url": f"sqlite:///{shop.folder}/state.db"},
    }
    (shop.folder / "shop.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.chdir(shop.folder)
    return shop


def run(block: Block, shop: Shop, names: Names) -> None:
    text = re.sub(r'"shop\.ya?ml"', repr(str(shop.folder / "shop.yaml")), shop.here(block.text))
    text = text.replace('"checkpoint"', repr(str(shop.folder / "checkpoint")))
    exec(compile(text, str(block), "exec"), names)


def run_until_rows_came(block: Block, shop: Shop, names: Names) -> None:
    """Run a program that follows changes until somebody stops its query, when it has got some."""
    spark: SparkSession = names["spark"]
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            run(block, shop, names)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    end, number = time.monotonic() + 120, 0
    try:
        while not any(
            each["numInputRows"] for query in spark.streams.active for each in query.recentProgress
        ):
            assert not errors, [str(error) for error in errors]
            assert time.monotonic() < end
            number += 1
            shop.source.execute(f"update users set name = 'user {number}' where id = 1")
            time.sleep(0.2)
    finally:
        for query in spark.streams.active:
            query.stop()
        thread.join()
    assert errors == []


def test_the_readme_reads_changes(reading: Shop, spark: SparkSession) -> None:
    first, second = on_page("README.md", "python")
    names: Names = {"spark": spark}
    run(first, reading, names)
    assert names["changes"].isStreaming
    assert {"_op", "_commit_lsn", "name"} <= set(names["changes"].columns)
    run_until_rows_came(second, reading, names)


@pytest.mark.slow
def test_the_page_on_spark_reads_changes_and_tables(reading: Shop, spark: SparkSession) -> None:
    reading.source.execute("create role reader login superuser")
    stream, table, snapshot = on_page("spark.md", "python")
    (oid,) = reading.source.query("select 'public.orders'::regclass::oid")[0]
    names: Names = {"spark": spark, "dsn": reading.source.dsn, "table_oid": oid}
    run_until_rows_came(stream, reading, names)
    run(table, reading, names)
    assert names["orders"].count() == 20
    run(snapshot, reading, names)
    assert names["snapshot"].name


@pytest.mark.slow
def test_the_library_for_consumers_of_nats_prints_a_change(nats: NatsServer, tmp_path: Path) -> None:
    (block,) = on_page("nats-consumers.md", "python")
    text = block.text.replace("nats://localhost:4222", nats.url).replace('"users"', '"items"')
    text = text.replace('"app"', repr(USER)).replace('"secret"', repr(nats.password))
    (tmp_path / "follow.py").write_text(text)

    async def play() -> bytes:
        async with Producer(nats) as producer:
            table = items()
            table.rows = [row(1)]
            await producer.add(table)
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-u", str(tmp_path / "follow.py"), stdout=asyncio.subprocess.PIPE
            )
            assert child.stdout is not None
            line = asyncio.ensure_future(child.stdout.readline())
            number = 1
            while not line.done():
                number += 1
                at = producer.begin()
                producer.insert(at, table, row(number))
                producer.commit(at)
                await producer.publish()
                await asyncio.wait({line}, timeout=0.2)
            child.kill()
            await child.wait()
            return line.result()

    assert asyncio.run(asyncio.wait_for(play(), 120)).startswith(b"INSERT {")


@pytest.mark.slow
@pytest.mark.usefixtures("reading")
def test_the_python_api_runs_a_pipeline_and_tells_its_status() -> None:
    """All blocks in one program, in their order, with a Spark of its own."""
    pipeline, status, memory = on_page("python-api.md", "python")
    (destination,) = on_page("python-api.md", "yaml")
    document = yaml.safe_load(Path("shop.yaml").read_text()) | yaml.safe_load(destination.text)
    Path("shop.yaml").write_text(yaml.safe_dump(document))
    Path("program.py").write_text("\n".join(block.text for block in (pipeline, status, memory)))
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "public.users ready" in done.stdout
    assert "TableName(schema='public', name='users'): " in done.stdout

"""The example in JavaScript follows a table over WebSocket, where there is Node, and a registry for npm."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.embedded.nats import USER, NatsServer
from penstock.embedded.postgres import free_port
from tests.consumer.producing import Producer
from tests.consumer.staging import items, row

EXAMPLE = Path(__file__).parents[2] / "examples" / "nats-javascript"
INSTALLING = 60


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example with its packages."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node here")
    folder = tmp_path / "example"
    how: Any = {"cwd": folder, "check": True, "capture_output": True, "timeout": INSTALLING}
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    try:
        subprocess.run([npm, "view", "ws", "version", "--fetch-retries=0"], **how)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm cannot fetch packages: no registry answers")
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--no-package-lock"], **how)
    return folder


@pytest.fixture
def websocket(tmp_path: Path) -> Iterator[tuple[NatsServer, str]]:
    port = free_port()
    settings = {"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}}
    server = NatsServer(tmp_path / "nats", settings)
    server.start()
    yield server, f"ws://127.0.0.1:{port}"
    server.remove()


def test_the_example_equals_the_table(example: Path, websocket: tuple[NatsServer, str]) -> None:
    server, address = websocket

    async def play() -> None:
        async with Producer(server) as producer:
            table = items()
            table.rows = [row(number) for number in range(-2, 5)]
            await producer.add(table)
            child = await asyncio.create_subprocess_exec(
                *("node", "consumer.mjs", address, "items"),
                cwd=example,
                env={"PATH": str(Path(shutil.which("node") or "").parent), "NATS_USER": USER}
                | {"NATS_PASSWORD": server.password},
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                await until(child, table.rows)
                at = producer.begin()
                producer.insert(at, table, row(40, None))
                producer.update(at, table, row(0), row(-40, "moved"))
                producer.update(at, table, row(3), row(3, "x", ratio="7.25"), "info")
                producer.delete(at, table, row(-2))
                producer.commit(at)
                await producer.publish()
                await until(child, table.rows)
                producer.reset(table)
                at = producer.begin()
                producer.truncate(at, table)
                producer.insert(at, table, row(1))
                producer.commit(at)
                await producer.publish()
                await until(child, table.rows)
                assert producer.snapshots == 2
            finally:
                child.kill()
                await child.wait()

    asyncio.run(play())


async def until(child: asyncio.subprocess.Process, rows: list[dict[str, str | None]]) -> None:
    """Wait until the example has these rows."""
    expected = sorted((_meant(values) for values in rows), key=repr)
    assert child.stdout is not None
    async with asyncio.timeout(20):
        while sorted(json.loads(await child.stdout.readline()), key=repr) != expected:
            pass


def _meant(values: dict[str, str | None]) -> dict[str, Any]:
    numbers = {"id": int(values["id"] or 0), "ratio": float(values["ratio"] or 0)}
    return {"id": 0, "name": values["name"], "info": json.loads(values["info"] or "null")} | numbers

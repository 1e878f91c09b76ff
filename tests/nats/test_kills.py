"""Whatever is killed on the way, a mirror of the NATS destination ends up equal to the source.

Killed, at random: the capture, the driver, the Python workers, the source's server, the NATS server, the
mirror. The workload goes on all the while, and snapshots are asked for in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest
from nats.errors import Error
from nats.js.errors import NotFoundError

from penstock.consumer import ConsumerAccess
from penstock.destinations.nats.subjects import token
from penstock.embedded.nats import USER, NatsServer
from tests.bed import Database
from tests.capture.running import eventually
from tests.consumer.forking import MirrorProcesses
from tests.nats.mirrored import mirror_difference
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration
from tests.pipeline.test_kills import Supervised, begun, survive
from tests.scenario import Workload


async def ask_for_snapshot(server: NatsServer, table: str) -> None:
    """As somebody does who does not wait for the answer."""
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    await client.publish(f"snapshot.request.{table}", b"")
    await client.close()


async def has_schemas(server: NatsServer) -> bool:
    client = await nats_client.connect(server.url, user=USER, password=server.password)
    try:
        await client.jetstream().key_value("schemas")
        return True
    except NotFoundError:
        return False
    finally:
        await client.close()


MODES: dict[str, dict[str, Any]] = {
    "ids": {"delivery": "ids", "encoding": "json"},
    "atomic": {"delivery": "atomic"},
    # Most transactions come in parts, and what the server answers is on its disk.
    "flushed": {"delivery": "atomic", "atomic_messages": 3, "sync": "always"},
}


def run_through_kills(
    source: Database, nats: NatsServer, folder: Path, kills: int, mode: str
) -> Counter[str]:
    random, workload, sources = begun(source)
    settings = to_nats(nats, **MODES[mode], compression="zstd", monitoring_url=nats.monitoring_url)
    encoding = settings.get("encoding", "msgpack")
    if settings.get("sync") == "always":
        nats.stop()
        nats.jetstream["sync_interval"] = "always"
        nats.start()
    file = folder / "mirror.db"
    access = ConsumerAccess(
        (nats.url,), USER, nats.password, encoding="json" if encoding == "json" else "msgpack"
    )
    mirrors = MirrorProcesses(access, file)

    def kill_nats() -> bool:
        nats.kill()
        nats.start()
        return True

    def kill_mirror() -> bool:
        mirrors.kill()
        mirrors.start()
        return True

    def ask(workload: Workload) -> None:
        with contextlib.suppress(Error, OSError):
            asyncio.run(ask_for_snapshot(nats, token(random.choice(workload.tables))))

    pipeline = Supervised(configuration(folder, source, settings, sources=sources))
    eventually(lambda: asyncio.run(has_schemas(nats)), 180)
    mirrors.start()
    also = {"nats": kill_nats, "mirror": kill_mirror}
    differs = partial(difference_of, workload, file)
    try:
        done = survive(pipeline, workload, differs, random, kills, also, partial(ask, workload))
    finally:
        mirrors.close()
    if settings["delivery"] == "atomic":
        places = Counter(
            (message.body.get("relation_id"), message.body["commit_lsn"], message.body["seq"])
            for message in read_all(nats, encoding=encoding)
            if message.body["operation"] not in ("RESET", "SCHEMA")
        )
        assert max(places.values()) == 1, "a message was doubled"
    return done


def difference_of(workload: Workload, file: Path) -> str:
    return mirror_difference(file, workload.database, workload.tables)


@pytest.mark.slow
def test_a_few_kills(own_database: Database, own_nats: NatsServer, tmp_path: Path) -> None:
    assert run_through_kills(own_database, own_nats, tmp_path, 4, "ids").total() == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_thirty_kills(own_database: Database, own_nats: NatsServer, tmp_path: Path, mode: str) -> None:
    done = run_through_kills(own_database, own_nats, tmp_path, 30, mode)
    assert done.total() >= 30
    assert len(done) == 6

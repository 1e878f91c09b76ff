"""`penstock mirror`, as it is run."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from penstock.embedded.nats import USER, NatsServer
from tests.consumer.comparing import differences
from tests.consumer.producing import Producer
from tests.consumer.staging import items, row

PROGRAM = [sys.executable, "-c", "from penstock.cli import main; main()", "mirror"]


def configured(folder: Path, server: NatsServer, password: str) -> Path:
    path = folder / "shop.yml"
    path.write_text(
        "pipeline: shop\n"
        f"spool: {{path: {folder}/spool}}\n"
        "sources: [{name: shop, dsn: 'postgresql://nobody@localhost:1/none'}]\n"
        "destinations:\n"
        f"  - {{name: live, type: nats, servers: '{server.url}', user: {USER}, password: '{password}'}}\n"
    )
    return path


async def started(*arguments: object) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*PROGRAM, *map(str, arguments), stdout=pipe, stderr=pipe)


def test_it_keeps_a_file_until_ctrl_c_and_goes_on_later(nats: NatsServer, tmp_path: Path) -> None:
    async def play() -> None:
        config, path = configured(tmp_path, nats, nats.password), tmp_path / "mirror.db"
        async with Producer(nats) as producer:
            table = items()
            table.rows = [row(1)]
            await producer.add(table)
            child = await started(config, "--to", f"sqlite:///{path}", "--table", "items")
            assert child.stdout is not None
            assert await child.stdout.readline() == b"items: 1 rows are loaded, and it is followed\n"
            child.send_signal(signal.SIGINT)
            printed, complaints = await child.communicate()
            assert (child.returncode, printed, complaints) == (130, b"", b"")
            at = producer.begin()
            producer.insert(at, table, row(2))
            producer.commit(at)
            await producer.publish()
            child = await started(config, "--to", f"sqlite:///{path}", "--once")
            printed, complaints = await child.communicate()
            assert (child.returncode, printed, complaints) == (0, b"", b"")
            assert differences(path, producer) == {}
            assert producer.snapshots == 1

    asyncio.run(play())


def test_what_is_wrong_is_one_sentence_without_a_password(nats: NatsServer, tmp_path: Path) -> None:
    async def play() -> None:
        config, to = configured(tmp_path, nats, "tr0ub4dor"), f"sqlite:///{tmp_path}/mirror.db"
        child, usage = await started(config, "--to", to), await started(config, "--to", "mirror.db")
        (_, refused), (_, complaints) = await child.communicate(), await usage.communicate()
        assert (child.returncode, refused.count(b"\n")) == (1, 1)
        assert refused.startswith(b"error: no NATS server lets us in")
        assert b"tr0ub4dor" not in refused
        assert usage.returncode == 2
        assert b"expected sqlite:///file.db" in complaints
        empty = await started(configured(tmp_path, nats, nats.password), "--to", to)
        _, refused = await empty.communicate()
        assert (empty.returncode, refused.count(b"\n")) == (1, 1)
        assert refused.startswith(b"error: there is no bucket schemas")

    asyncio.run(play())

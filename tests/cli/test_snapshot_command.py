"""`penstock snapshot`, as it is run."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from penstock.embedded.nats import NatsServer
from tests.cli.test_mirror_command import configured
from tests.consumer.producing import Producer
from tests.consumer.staging import items, row

PROGRAM = [sys.executable, "-c", "from penstock.cli import main; main()", "snapshot"]


async def started(*arguments: object) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*PROGRAM, *map(str, arguments), stdout=pipe, stderr=pipe)


def test_it_waits_until_the_snapshot_is_there(nats: NatsServer, tmp_path: Path) -> None:
    async def play() -> None:
        config = configured(tmp_path, nats, nats.password)
        async with Producer(nats) as producer:
            table = items()
            table.rows = [row(number) for number in range(1, 8)]
            await producer.add(table)
            child = await started(config, "public.items")
            printed, complaints = await child.communicate()
            assert (child.returncode, complaints) == (0, b"")
            assert printed.decode().splitlines() == [
                "public.items: s1 is being made",
                "public.items: 7 rows in 3 messages, init.snap.items.s1.*",
            ]
            other = await started(config, "public.others")
            printed, complaints = await other.communicate()
            assert (other.returncode, printed) == (1, b"")
            assert complaints.startswith(b"error: the pipeline gives no snapshot: there is no such table")
            producer.snapshot_pause = 60
            child = await started(config, "public.items")
            assert child.stdout is not None
            assert await child.stdout.readline() == b"public.items: s2 is being made\n"
            child.send_signal(signal.SIGINT)
            printed, complaints = await child.communicate()
            assert (child.returncode, printed, b"Traceback" in complaints) == (130, b"", False)
        child = await started(config, "public.items")
        printed, complaints = await child.communicate()
        assert (child.returncode, printed, complaints.count(b"\n")) == (1, b"", 1)
        assert complaints.startswith(b"error: nobody answers to requests for snapshots")

    asyncio.run(play())

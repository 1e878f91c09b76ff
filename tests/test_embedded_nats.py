"""The embedded NATS server: it asks for its password, keeps its streams, and several are a cluster."""

from __future__ import annotations

import asyncio
import socket
import stat

import nats as nats_client
import pytest
from nats.aio.client import Client
from nats.errors import Error

from penstock.embedded.nats import USER, NatsServer
from tests.bed import started_nats


async def connected(server: NatsServer) -> Client:
    return await nats_client.connect(server.url, user=USER, password=server.password)


def test_only_the_password_opens_it(nats: NatsServer) -> None:
    with socket.create_connection(("127.0.0.1", nats.port)) as connection, connection.makefile("rw") as line:
        assert line.readline().startswith("INFO")
        line.write(f'CONNECT {{"user": "{USER}", "pass": "another", "verbose": false}}\r\nPING\r\n')
        line.flush()
        assert "Authorization Violation" in line.readline()
    assert stat.S_IMODE((nats.folder / "server.conf").stat().st_mode) == 0o600


def test_a_killed_server_comes_back_with_its_streams(own_nats: NatsServer) -> None:
    async def published() -> int:
        client = await connected(own_nats)
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s.>"])
        sequence = int((await stream.publish("s.a", b"kept")).seq)
        await client.close()
        return sequence

    async def read(sequence: int) -> bytes:
        client = await connected(own_nats)
        message = await client.jetstream().get_msg("S", sequence)
        await client.close()
        return bytes(message.data or b"")

    sequence = asyncio.run(published())
    own_nats.kill()
    assert not own_nats.running
    own_nats.start()
    assert asyncio.run(read(sequence)) == b"kept"


@pytest.mark.slow
def test_three_are_a_cluster() -> None:
    servers = [started_nats() for _ in range(3)]
    try:
        for server in servers:
            server.stop()
            server.join("three", servers)
        for server in servers:
            server.start()

        async def replicas() -> int:
            client = await connected(servers[1])
            manager = client.jetstream(timeout=20)
            for _ in range(100):
                try:
                    made = await manager.add_stream(name="S", subjects=["s.>"], num_replicas=3)
                    break
                except Error:  # they are still choosing a leader
                    await asyncio.sleep(0.2)
            await client.close()
            return int(made.config.num_replicas or 0)

        assert asyncio.run(replicas()) == 3
    finally:
        for server in servers:
            server.remove()

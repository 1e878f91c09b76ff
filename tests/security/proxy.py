"""A proxy that speaks TLS before a server that does not: to libpq it is the server.

`python -m tests.security.proxy SOCKET COMMAND…`, in a network of its own (`unshare -n`), runs the command
where the proxy is another machine.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.embedded.postgres import PostgresServer

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Of a `localhost` that nobody has, with its key, valid for a hundred years."""
ELSEWHERE, PORT = "192.0.2.1", 5432
"""An address that no machine has: it is for documentation."""

SSL_REQUEST = struct.pack("!ii", 8, 80877103)


def socket_of(server: PostgresServer) -> str:
    return f"{server.sockets}/.s.PGSQL.{server.port}"


@contextmanager
def proxy(address: str, port: int, server: str) -> Iterator[int]:
    """A port that speaks TLS with those who ask for it, and hands everything on to the server's socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    listener = socket.create_server((address, port))
    loop = asyncio.new_event_loop()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(server)
        first = await reader.readexactly(8)
        if first == SSL_REQUEST:
            writer.write(b"S")
            await writer.start_tls(context)
        else:
            to_server.write(first)
        await asyncio.gather(handed_on(reader, to_server), handed_on(from_server, writer))

    async def handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while said := await reader.read(65536):
                writer.write(said)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def serve() -> None:
        async with await asyncio.start_server(meet, sock=listener):
            await stop.wait()
            while len(tasks := asyncio.all_tasks()) > 1:
                await asyncio.wait(tasks - {asyncio.current_task()}, timeout=5)

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def main() -> int:
    server, *command = sys.argv[1:]
    for words in (["link", "set", "lo", "up"], ["address", "add", f"{ELSEWHERE}/32", "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)
    with proxy(ELSEWHERE, PORT, server):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Who keeps connections and asks for nothing keeps nobody else from asking."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import psutil
import pytest

from penstock.config import Config
from penstock.monitoring import serving
from tests.monitoring.asking import Served, served

HALF = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HALF + b"\r\n"
ASSET = b"GET /assets/dashboard.js HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _says_nothing(_: socket.socket) -> None: ...


def _stops_half_way(client: socket.socket) -> None:
    client.sendall(HALF)


def _stops_half_way_again(client: socket.socket) -> None:
    client.sendall(WHOLE)
    assert client.recv(10)
    client.sendall(HALF)


@pytest.fixture
def impatient(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(serving, "IDLE", 1)
    with served(config) as http:
        yield http


@contextmanager
def connected(http: Served) -> Iterator[socket.socket]:
    host, port = http.ask.host.split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect((host, int(port)))
        yield client


@pytest.mark.parametrize("behaves", [_says_nothing, _stops_half_way, _stops_half_way_again])
def test_clients_that_hold_a_connection_give_way(
    impatient: Served, behaves: Callable[[socket.socket], None]
) -> None:
    with ExitStack() as clients:
        for _ in range(serving.MOST_CONNECTIONS + 4):
            behaves(clients.enter_context(connected(impatient)))
        impatient.ask.until("/health", lambda answer: answer.code == 200, 10)


def test_headers_that_come_byte_by_byte_come_to_an_end(impatient: Served) -> None:
    with connected(impatient) as client:
        client.settimeout(0.1)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                client.sendall(b"x")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    raise AssertionError("it is still open")


def test_who_asks_every_second_is_not_cut_off(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE", 2)
    with served(config) as http:
        client = HTTPConnection(http.ask.host, timeout=20)
        client.connect()
        its_own = client.sock
        for _ in range(4):
            client.request("GET", "/health")
            assert client.getresponse().read()
            assert client.sock is its_own  # a new one would have been made where the last was closed
            time.sleep(1)
        client.close()


def test_a_body_may_take_longer_than_headers(impatient: Served) -> None:
    with connected(impatient) as client:
        client.sendall(
            b"PUT /tables/public.orders/mapping HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 5\r\n\r\n"
        )
        for byte in b"[   ]":
            time.sleep(0.4)
            client.sendall(bytes([byte]))
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_who_takes_no_answer_is_let_go_of(impatient: Served) -> None:
    with connected(impatient) as client:
        port = client.getsockname()[1]
        client.sendall(ASSET * 20_000)  # more answers than any buffer holds
        assert client.recv(1)
        end = time.monotonic() + 20
        while any(each.raddr and each.raddr.port == port for each in psutil.Process().net_connections()):
            assert time.monotonic() < end
            time.sleep(0.05)

r"""Messages straight onto a socket to a NATS server, rendered in advance: as fast as the server takes them.

Nothing of ours is used here and nothing of nats-py. One thread sends the frames, another hears the answers;
so many messages wait for theirs at once, at most, as each way has its `window`.

    HPUB subject reply header-length length\r\n NATS/1.0\r\n Name: value\r\n \r\n payload \r\n
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from bench.servers import GIVEN_UP, NeverArrived
from penstock.embedded.nats import USER, NatsServer

PIECE = 1000
"""Messages that are handed to the socket at once; and in an atomic batch, the most that the server takes."""
_INBOX = "_INBOX.bench"
_ANSWER = re.compile(rb"\{.*\}\r\n")
_SOCKET_BUFFER = 1 << 20


class Message(NamedTuple):
    subject: str
    id: str
    payload: bytes


class Piece(NamedTuple):
    frames: bytes
    messages: int


class RawWay(Protocol):
    """One of the ways to have messages stored."""

    name: str
    window: int

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Yield the frames."""

    def stored(self, before: int, answers: Sequence[bytes]) -> int:
        """Return how many messages are stored, after so many before, by what the server has answered."""


class WithIds:
    """Each message has its id and its answer, all of them at one inbox."""

    name = "raw HPUB with ids"
    window = 50_000

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        for part in _parts(messages):
            frames = (_frame(message, f"{_INBOX}.1", {"Nats-Msg-Id": message.id}) for message in part)
            yield Piece(b"".join(frames), len(part))

    def stored(self, before: int, answers: Sequence[bytes]) -> int:
        return before + len(answers)


class FastIngest:
    """A fast batch of messages with ids: the server answers for several hundred at once."""

    name = "raw fast ingest with ids"
    window = 20_000
    _flow = 500

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        reply = f"{_INBOX}.batch.{self._flow}.fail"
        numbers = count(1)
        for part in _parts(messages):
            frames = []
            for message, number in zip(part, numbers, strict=False):
                step = 0 if number == 1 else 1
                frames.append(_frame(message, f"{reply}.{number}.{step}.$FI", {"Nats-Msg-Id": message.id}))
            yield Piece(b"".join(frames), len(part))
        end = f"{reply}.{len(messages) + 1}.3.$FI"
        yield Piece(f"PUB {messages[0].subject} {end} 0\r\n\r\n".encode(), 0)

    def stored(self, before: int, answers: Sequence[bytes]) -> int:
        """Some may be stored without that it was said; at the end it is told of all."""
        document = json.loads(answers[-1])
        return max(before, int(document.get("count", document["seq"])))


class AtomicBatches:
    name = f"raw atomic batches of {PIECE:,}"
    window = 16 * PIECE

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        for batch, part in enumerate(_parts(messages)):
            frames = []
            for number, message in enumerate(part, 1):
                headers = {"Nats-Batch-Id": f"bench-{batch}", "Nats-Batch-Sequence": str(number)}
                ends = number == len(part)
                reply = f"{_INBOX}.{batch}" if ends else ""
                frames.append(_frame(message, reply, headers | ({"Nats-Batch-Commit": "1"} if ends else {})))
            yield Piece(b"".join(frames), len(part))

    def stored(self, before: int, answers: Sequence[bytes]) -> int:
        return before + sum(int(json.loads(answer).get("count", 1)) for answer in answers)


class RawConnection:
    def __init__(self, server: NatsServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self._sending = threading.Lock()
        self._heard = threading.Condition()
        self._stored = 0
        self._failure = ""
        options = {"user": USER, "pass": server.password, "verbose": False, "headers": True, "lang": "bench"}
        self._socket.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {_INBOX}.> 1\r\n".encode())

    def publish(self, way: RawWay, pieces: Sequence[Piece]) -> float:
        """Return the seconds until all is stored."""
        listener = threading.Thread(target=self._listen, args=(way,), daemon=True)
        listener.start()
        sent = 0
        began = time.perf_counter()
        for piece in pieces:
            self._wait_for(sent + piece.messages - way.window)
            with self._sending:
                self._socket.sendall(piece.frames)
            sent += piece.messages
        self._wait_for(sent)
        return time.perf_counter() - began

    def _wait_for(self, stored: int) -> None:
        with self._heard:
            if not self._heard.wait_for(lambda: self._failure or self._stored >= stored, GIVEN_UP):
                raise NeverArrived("the NATS server does not answer")
            if self._failure:
                raise NeverArrived(f"the NATS server refuses messages: {self._failure}")

    def _listen(self, way: RawWay) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 16):
                complete, line_end, rest = (rest + data).rpartition(b"\r\n")
                self._hear(way, complete + line_end)
        with self._heard:
            self._failure = self._failure or "the connection has ended"
            self._heard.notify()

    def _hear(self, way: RawWay, text: bytes) -> None:
        if b"PING\r\n" in text:
            with self._sending:
                self._socket.sendall(b"PONG\r\n")
        answers = [answer for answer in _ANSWER.findall(text) if b'"server_id"' not in answer]
        with self._heard:
            if b"-ERR" in text or b'"error"' in text:
                self._failure = text.decode(errors="replace")[-300:]
            elif answers:
                self._stored = way.stored(self._stored, answers)
            self._heard.notify()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _parts(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for first in range(0, len(messages), PIECE):
        yield messages[first : first + PIECE]


def _frame(message: Message, reply: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    start = f"HPUB {message.subject} {reply} {len(block)} {len(block) + len(message.payload)}\r\n"
    return start.encode() + block + message.payload + b"\r\n"

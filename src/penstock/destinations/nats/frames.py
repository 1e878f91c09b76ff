r"""Messages as the bytes that NATS's protocol wants on the wire, many at once.

    HPUB subject reply header-length length\r\n NATS/1.0\r\n Name: value\r\n \r\n payload \r\n

nats-py takes 7 µs for a message; here compiled code puts all of them together (`changes/joined`).

Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.changes.joined import Joiner
from penstock.changes.text_columns import TextColumn
from penstock.destinations.nats.messages import Messages
from penstock.model.compiled import Int64s

_VERSION = b"NATS/1.0\r\n"
_END = b"\r\n\r\n"
_ID = b"Nats-Msg-Id: "
_START, _APPEND = b".0.$FI ", b".1.$FI "


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before a text that is another in each message, and behind it."""

    before: bytes
    text: TextColumn

    def lengths(self) -> Int64s:
        return len(self.before) + self.text.stops - self.text.starts + len(_END)


def fast_frames(messages: Messages, reply: bytes, first: int) -> bytes:
    """Return messages of a fast batch, of which they are number `first` and following. Each has its id."""
    frames = _begun(messages)
    frames.constant(b" " + reply)
    frames.texts(TextColumn.decimal(np.arange(first, first + len(messages))))
    frames.choice([_START, _APPEND], np.minimum(np.arange(first - 1, first - 1 + len(messages)), 1))
    return _ended(frames, messages, _Header(_VERSION + _ID, TextColumn.of(messages.ids)))


def atomic_frames(messages: Messages, batch: str, behind: int | None) -> bytes:
    """Return messages of an atomic batch, from its first one on, to be stored right behind a message of the
    stream; None: wherever it ends."""
    numbers = TextColumn.decimal(np.arange(1, len(messages) + 1))
    if behind is not None:
        numbers = numbers.with_first(f"1\r\nNats-Expected-Last-Sequence: {behind}".encode())
    before = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: ".encode()
    frames = _begun(messages)
    frames.constant(b" ")
    return _ended(frames, messages, _Header(_VERSION + before, numbers))


def frame(subject: str, reply: str, headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message."""
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
    block = _VERSION + lines + b"\r\n"
    start = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n"
    return start.encode() + block + payload + b"\r\n"


def _begun(messages: Messages) -> Joiner:
    frames = Joiner(len(messages))
    frames.constant(b"HPUB ")
    frames.choice(messages.subjects, messages.subject_numbers)
    return frames


def _ended(frames: Joiner, messages: Messages, header: _Header) -> bytes:
    lengths = header.lengths()
    frames.texts(TextColumn.decimal(lengths))
    frames.constant(b" ")
    frames.texts(TextColumn.decimal(lengths + messages.ends - messages.starts))
    frames.constant(b"\r\n" + header.before)
    frames.texts(header.text)
    frames.constant(_END)
    frames.texts(TextColumn(messages.payload, messages.starts, messages.ends, 0))
    frames.constant(b"\r\n")
    return frames.joined().data.tobytes()

"""pgoutput from the server's side: its messages encoded, and hypothesis strategies for whole streams.

The layouts are written down here once more, independently of the decoders, from "Logical Replication
Message Formats" in PostgreSQL's manual.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from penstock.capture.messages import HEARTBEAT_PREFIX


class Unchanged:
    """The mark of a value that the server did not send."""


UNCHANGED = Unchanged()
Value = str | bytes | None | Unchanged
Values = Sequence[Value]
TIME = 700_000_000_000_000


@dataclass(frozen=True)
class Table:
    id: int
    columns: tuple[str, ...]
    identity: bytes = b"d"


def xlog(lsn: int, payload: bytes, sent_at: int = TIME) -> bytes:
    return struct.pack("!cQQq", b"w", lsn, lsn, sent_at) + payload


def keepalive(lsn: int) -> bytes:
    return struct.pack("!cQqB", b"k", lsn, TIME, 0)


def begin(commit_lsn: int, xid: int, time: int = TIME) -> bytes:
    return struct.pack("!cQqI", b"B", commit_lsn, time, xid)


def commit(commit_lsn: int, end_lsn: int, time: int = TIME) -> bytes:
    return struct.pack("!cBQQq", b"C", 0, commit_lsn, end_lsn, time)


def relation(table: Table, xid: int | None = None) -> bytes:
    columns = b"".join(
        struct.pack("!B", place == 0) + name.encode() + b"\0" + struct.pack("!Ii", 25, -1)
        for place, name in enumerate(table.columns)
    )
    head = _kind(b"R", xid) + struct.pack("!I", table.id) + b"public\0" + f"t{table.id}".encode() + b"\0"
    return head + table.identity + struct.pack("!h", len(table.columns)) + columns


def row(values: Values) -> bytes:
    return struct.pack("!h", len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    text = value.encode() if isinstance(value, str) else value
    return struct.pack("!ci", b"t", len(text)) + text


def insert(table: Table, values: Values, xid: int | None = None) -> bytes:
    return _kind(b"I", xid) + struct.pack("!I", table.id) + b"N" + row(values)


def update(
    table: Table, values: Values, old: tuple[bytes, Values] | None = None, xid: int | None = None
) -> bytes:
    """`old` is (b"K" or b"O", values)."""
    before = old[0] + row(old[1]) if old else b""
    return _kind(b"U", xid) + struct.pack("!I", table.id) + before + b"N" + row(values)


def delete(table: Table, old: tuple[bytes, Values], xid: int | None = None) -> bytes:
    return _kind(b"D", xid) + struct.pack("!I", table.id) + old[0] + row(old[1])


def truncate(tables: Sequence[Table], options: int = 0, xid: int | None = None) -> bytes:
    head = _kind(b"T", xid) + struct.pack("!iB", len(tables), options)
    return head + b"".join(struct.pack("!I", table.id) for table in tables)


def message(lsn: int, prefix: str, content: bytes, *, transactional: bool, xid: int | None = None) -> bytes:
    head = _kind(b"M", xid) + struct.pack("!BQ", transactional, lsn)
    return head + prefix.encode() + b"\0" + struct.pack("!i", len(content)) + content


def data_type(oid: int, name: str, xid: int | None = None) -> bytes:
    return _kind(b"Y", xid) + struct.pack("!I", oid) + b"public\0" + name.encode() + b"\0"


def origin(lsn: int, name: str) -> bytes:
    return b"O" + struct.pack("!Q", lsn) + name.encode() + b"\0"


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return struct.pack("!cIB", b"S", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int) -> bytes:
    return struct.pack("!cIBQQq", b"c", xid, 0, commit_lsn, end_lsn, TIME)


def stream_abort(xid: int, subxid: int) -> bytes:
    return struct.pack("!cII", b"A", xid, subxid)


def _kind(kind: bytes, xid: int | None) -> bytes:
    return kind if xid is None else kind + struct.pack("!I", xid)


# Strategies: a stream is what one server could send over one connection.

_TEXT = st.text(max_size=6) | st.sampled_from(["", "0", "ä" * 50, "\U0001f40d", "x" * 200])
_NAMES = st.sampled_from(["a", "b", "c", "ü"])


class _Server:
    """Sends whole transactions, streamed or not, one after the other; draws what is in them."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lsn = 1000
        self.xid = 700
        self.tables = [Table(16384 + number, ("id", "a", "b", "c")[:width]) for number, width in _WIDTHS]
        self.described: set[Table] = set()
        self.sent: list[bytes] = []

    def advance(self) -> int:
        self.lsn += self.draw(st.integers(1, 300))
        return self.lsn

    def send(self, payload: bytes) -> None:
        self.sent.append(xlog(self.lsn, payload))

    def now_and_then(self, what: bytes) -> None:
        if self.draw(st.integers(0, 9)) == 0:
            self.sent.append(what)

    def values(self, table: Table, *extra: Value) -> list[Value]:
        value = st.one_of(_TEXT, st.none(), *(st.just(each) for each in extra))
        return [self.draw(value) for _ in table.columns]

    def old(self, table: Table) -> tuple[bytes, Values]:
        return self.draw(st.sampled_from([b"K", b"O"])), self.values(table)

    def change(self, described: set[Table], xid: int | None) -> None:
        """One change, with a description of its table before it where that is due."""
        self.advance()
        place = self.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables[place]
        if self.draw(st.integers(0, 9)) == 0:
            self.tables[place] = table = replace(table, columns=(*table.columns[1:], self.draw(_NAMES)))
        kind = self.draw(st.sampled_from("IIIUUDTMYh"))
        for due in self.tables if kind == "T" else [table]:
            if due not in described:
                self.send(relation(due, xid))
                described -= {other for other in described if other.id == due.id}
                described.add(due)
        match kind:
            case "I":
                self.send(insert(table, self.values(table, UNCHANGED), xid))
            case "U":
                old = self.old(table) if self.draw(st.booleans()) else None
                self.send(update(table, self.values(table, UNCHANGED), old, xid))
            case "D":
                self.send(delete(table, self.old(table), xid))
            case "T":
                self.send(truncate(self.tables, self.draw(st.integers(0, 3)), xid))
            case "Y":
                self.send(data_type(self.draw(st.integers(0, 2**32 - 1)), "mood", xid))
            case _:
                prefix = HEARTBEAT_PREFIX if kind == "h" else self.draw(_NAMES)
                content = self.draw(st.binary(max_size=4))
                self.send(message(self.lsn, prefix, content, transactional=True, xid=xid))
        self.now_and_then(keepalive(self.lsn))

    def transaction(self) -> None:
        self.xid += 1
        commit_lsn = self.lsn + 100_000
        self.send(begin(commit_lsn, self.xid))
        self.now_and_then(xlog(self.lsn, origin(5, "elsewhere")))
        for _ in range(self.draw(st.integers(0, 4))):
            self.change(self.described, None)
        self.lsn = commit_lsn + self.draw(st.integers(1, 50))
        self.send(commit(commit_lsn, self.lsn))

    def streamed(self) -> None:
        """Blocks of one transaction, others in between, subtransactions that may roll back."""
        self.xid += 10
        top, described = self.xid, set[Table]()
        for number in range(self.draw(st.integers(1, 3))):
            self.send(stream_start(top, first=number == 0))
            xid = self.draw(st.sampled_from([top, top + 1 + number]))
            for _ in range(self.draw(st.integers(0, 3))):
                self.change(described, xid)
            self.send(stream_stop())
            if xid != top and self.draw(st.booleans()):
                self.send(stream_abort(top, xid))
                described.clear()
            if self.draw(st.booleans()):
                self.transaction()
        commit_lsn = self.advance()
        if self.draw(st.integers(0, 3)) == 0:
            self.send(stream_abort(top, top))
        else:
            self.send(stream_commit(top, commit_lsn, self.advance()))
            self.described.clear()

    def immediate(self) -> None:
        prefix = self.draw(st.sampled_from(["a", HEARTBEAT_PREFIX]))
        self.advance()
        self.send(message(self.lsn, prefix, b"\x00\xff", transactional=False))

    def idle(self) -> None:
        self.sent.append(keepalive(self.advance()))


_WIDTHS = list(enumerate([1, 3, 4, 0]))


@st.composite
def streams(draw: Any) -> list[bytes]:
    """CopyData messages of a few transactions in every form."""
    server = _Server(draw)
    forms = [server.transaction, server.transaction, server.streamed, server.immediate, server.idle]
    for form in draw(st.lists(st.sampled_from(forms), min_size=1, max_size=5)):
        form()
    return server.sent


@st.composite
def damaged(draw: Any) -> list[bytes]:
    """A stream with some of its messages cut, flipped, lengthened, lost, doubled, glued or swapped."""
    sent: list[bytes] = draw(streams())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(sent) - 1))
        hurt = sent[place]
        at = draw(st.integers(0, len(hurt)))
        match draw(
            st.sampled_from(["cut", "flip", "flip", "flip", "grow", "lose", "double", "glue", "swap"])
        ):
            case "cut":
                sent[place] = hurt[:at]
            case "flip" if at < len(hurt):
                bit = draw(st.integers(0, 7))
                sent[place] = hurt[:at] + bytes([hurt[at] ^ 1 << bit]) + hurt[at + 1 :]
            case "grow":
                sent[place] = hurt[:at] + draw(st.binary(min_size=1, max_size=3)) + hurt[at:]
            case "lose" if len(sent) > 1:
                del sent[place]
            case "double":
                sent.insert(place, hurt)
            case "glue":
                sent[place] = hurt + draw(st.sampled_from(sent))
            case "swap":
                other = draw(st.integers(0, len(sent) - 1))
                sent[place], sent[other] = sent[other], sent[place]
    return sent

"""The rare messages of pgoutput, parsed in plain Python: everything but rows, begins and commits.

Layouts are those of "Logical Replication Message Formats" in PostgreSQL's manual. `Reader` checks every
bound: a message that ends early is a `MalformedMessage` with its position, never an IndexError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.model import Lsn
from penstock.model.errors import MalformedMessage

EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01; Unix and Arrow from 1970-01-01."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    table_id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    table_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


class Reader:
    """Reads one message from front to back; `lsn` is where the message stands, for errors."""

    def __init__(self, data: bytes, lsn: Lsn) -> None:
        self._data = data
        self._at = 0
        self.lsn = lsn

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise self.malformed(f"it ends early: {size} bytes wanted at {self._at} of {len(self._data)}")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def int8(self) -> int:
        return self.take(1)[0]

    def int16(self) -> int:
        return int(struct.unpack("!h", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack("!i", self.take(4))[0])

    def uint32(self) -> int:
        return int(struct.unpack("!I", self.take(4))[0])

    def int64(self) -> int:
        return int(struct.unpack("!q", self.take(8))[0])

    def position(self) -> Lsn:
        value = self.int64()
        if value < 0:
            raise self.malformed("it holds an impossible LSN")
        return Lsn(value)

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.malformed("a name in it does not end")
        name = self.take(end - self._at)
        self.take(1)
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise self.malformed("a name in it is not UTF-8") from None

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.malformed(f"{len(self._data) - self._at} bytes follow its end")

    def malformed(self, what: str) -> MalformedMessage:
        kind = chr(self._data[0]) if self._data else "empty"
        return MalformedMessage(
            f"a replication message of kind {kind!r} does not parse: {what}", lsn=self.lsn
        )

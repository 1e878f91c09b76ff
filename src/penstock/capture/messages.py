"""The rare messages of pgoutput, parsed in plain Python: everything but rows, begins and commits.

The functions at the end take a `Reader` that stands behind the message's kind, and check that the message
ends where it should.

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
FIRST_TIME_US = -63_082_281_600_000_000
LAST_TIME_US = 252_455_615_999_999_999
"""The years 1 to 9999, counted from 2000: what a clock may say and a datetime can hold."""
HEARTBEAT_PREFIX = "penstock.heartbeat"
"""Logical messages of ours: they move the position on and are no change."""


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

    @property
    def options(self) -> tuple[str, ...]:
        """As they stand in the spool."""
        flags = {"cascade": self.cascade, "restart identity": self.restart_identity}
        return tuple(name for name, wanted in flags.items() if wanted)


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes

    @property
    def place(self) -> Lsn:
        """Where an immediate message stands among the commits, for which `lsn` will not do: that is where
        its record ends, and a commit that comes later may begin right there. The byte before is its own."""
        return Lsn(self.lsn.value - 1)

    @property
    def values(self) -> tuple[str, str, str]:
        """As they stand in the spool."""
        return self.prefix, "transactional" if self.transactional else "immediate", f"\\x{self.content.hex()}"


@dataclass(frozen=True, slots=True)
class XLogData:
    """What the server wraps a pgoutput message in: where it stands in the WAL, and when it was sent."""

    lsn: Lsn
    sent_at: int
    kind: str
    payload: bytes

    def reader(self, *, streamed: bool = False) -> Reader:
        """Return a reader past the message's kind and, in a streamed transaction, the xid that follows."""
        reader = Reader(self.payload, self.lsn)
        reader.take(5 if streamed else 1)
        return reader


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

    def rest(self) -> tuple[bytes, int]:
        """Return the message and the place in it, for a caller that reads on and then says how far."""
        return self._data, self._at

    def skip_to(self, at: int) -> None:
        self._at = at

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

    def time(self) -> int:
        """Microseconds since PostgreSQL's epoch."""
        return self.check_time(self.int64())

    def check_time(self, value: int) -> int:
        if not FIRST_TIME_US <= value <= LAST_TIME_US:
            raise self.malformed("it holds an impossible time")
        return value

    def flag(self) -> bool:
        value = self.int8()
        if value > 1:
            raise self.malformed(f"it holds an unknown flag {value}")
        return bool(value)

    def no_flags(self) -> None:
        if self.int8() != 0:
            raise self.malformed("it holds unknown flags")

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


def position(message: bytes) -> Lsn | None:
    """Return where a CopyData message says it stands, as far as it can be read: for errors."""
    if message[:1] != b"w" or len(message) < 9 or message[1] & 0x80:
        return None
    return Lsn(int.from_bytes(message[1:9], "big"))


def xlog_data(message: bytes) -> XLogData:
    """
    w | int64 start | int64 end of WAL | int64 time | payload
    """
    lsn = position(message)
    if lsn is None or len(message) < 26 or message[9] & 0x80:
        raise MalformedMessage("a replication message does not parse: its header is damaged", lsn=lsn)
    sent_at = int.from_bytes(message[17:25], "big", signed=True)
    return XLogData(lsn, sent_at, chr(message[25]), message[25:])


def keepalive(message: bytes) -> Lsn:
    """
    k | int64 end of WAL | int64 time | int8 reply wanted
    """
    if message[:1] != b"k" or len(message) != 18 or message[1] & 0x80:
        raise MalformedMessage("a keepalive does not parse")
    return Lsn(int.from_bytes(message[1:9], "big"))


def relation(reader: Reader) -> RelationMessage:
    """
    uint32 table | schema \\0 | name \\0 | int8 identity | int16 columns
      per column: int8 key | name \\0 | uint32 type | int32 modifier
    """
    table_id, schema, name = reader.uint32(), reader.text(), reader.text()
    identity, count = chr(reader.int8()), reader.int16()
    if identity not in "dnfi":
        raise reader.malformed(f"{identity!r} is no replica identity")
    if count < 0:
        raise reader.malformed(f"it announces {count} columns")
    columns = tuple(_column(reader) for _ in range(count))
    reader.end()
    return RelationMessage(table_id, schema or "pg_catalog", name, identity, columns)


def _column(reader: Reader) -> RelationColumn:
    key, name = reader.flag(), reader.text()
    return RelationColumn(name, reader.uint32(), reader.int32(), key)


def data_type(reader: Reader) -> None:
    """
    uint32 type | schema \\0 | name \\0: checked only, since types are looked up by oid
    """
    reader.uint32(), reader.text(), reader.text()
    reader.end()


def origin(reader: Reader) -> None:
    """
    int64 commit LSN at the origin | name \\0: checked only
    """
    reader.position(), reader.text()
    reader.end()


def truncate(reader: Reader) -> TruncateMessage:
    """
    int32 tables | int8 options (1 cascade, 2 restart identity) | uint32 table ...
    """
    count, options = reader.int32(), reader.int8()
    if options > 3:
        raise reader.malformed(f"it holds unknown options {options}")
    table_ids = struct.unpack(f"!{count}I", reader.take(4 * count)) if count > 0 else ()
    if count < 0:
        raise reader.malformed(f"it announces {count} tables")
    reader.end()
    return TruncateMessage(table_ids, bool(options & 1), bool(options & 2))


def logical_message(reader: Reader) -> LogicalMessage:
    """
    int8 transactional | int64 LSN | prefix \\0 | int32 length | content
    """
    transactional, lsn, prefix = reader.flag(), reader.position(), reader.text()
    content = reader.take(reader.int32())
    reader.end()
    if not lsn:
        raise reader.malformed("it holds an impossible LSN")
    return LogicalMessage(transactional, lsn, prefix, content)


def stream_start(reader: Reader) -> int:
    """
    uint32 xid | int8 whether it is the transaction's first block; returns the xid
    """
    xid = reader.uint32()
    reader.flag()
    reader.end()
    return xid


def stream_commit(reader: Reader) -> tuple[int, Lsn, Lsn, int]:
    """
    uint32 xid | int8 flags (0) | int64 commit LSN | int64 end LSN | int64 time
    """
    xid = reader.uint32()
    reader.no_flags()
    commit_lsn, end_lsn, committed_at = reader.position(), reader.position(), reader.time()
    if end_lsn <= commit_lsn:
        raise reader.malformed("it ends before it commits")
    reader.end()
    return xid, commit_lsn, end_lsn, committed_at


def stream_abort(reader: Reader) -> tuple[int, int]:
    """
    uint32 xid | uint32 xid of the subtransaction
    """
    xid, subxid = reader.uint32(), reader.uint32()
    reader.end()
    return xid, subxid

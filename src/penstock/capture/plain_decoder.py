"""The plain-Python decoder: message by message, with nothing clever. The oracle for the fast one.

It makes the events of `penstock.model` and, from them, the same batches as `decoder.FastDecoder`. Tests
compare the two; `events` is for whoever wants to look at a stream rather than keep it. It is never the
production path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.capture import messages
from penstock.capture.messages import (
    EPOCH_US,
    HEARTBEAT_PREFIX,
    LogicalMessage,
    Reader,
    TruncateMessage,
    XLogData,
)
from penstock.capture.relations import Relations
from penstock.capture.runs import Block, DecodedRows, MessageRun, Schemas, Step, StreamAbort, StreamCommit
from penstock.model import NO_TABLE, Lsn, TableId
from penstock.model.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Insert,
    Message,
    OldRow,
    Relation,
    Row,
    Truncate,
    Unsupported,
    Update,
)  # fmt: skip
from penstock.spool.segment import EMPTY, SCHEMA, BeforeKind, Op

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _PlainTransaction:
    commit_lsn: Lsn
    committed_at: int
    """Microseconds since PostgreSQL's epoch."""
    xid: int
    dropped: bool
    seq: int = 0

    def next(self) -> int:
        self.seq += 1
        return self.seq - 1


class ReferenceDecoder:
    def __init__(self, schemas: Schemas, start: Lsn) -> None:
        """`start` is the position to begin at: a transaction that committed before it is left out."""
        self._relations = Relations(schemas)
        self._changes = _PlainChanges(self._relations, start)
        self._block: int | None = None
        """The xid of the streamed block that is arriving."""

    def events(self, run: MessageRun) -> Iterator[Event]:
        """Yield the events of a run; a streamed transaction's are not among them."""
        for read in self._read(run):
            if not isinstance(read, Block | StreamAbort | StreamCommit):
                yield read

    def decode(self, run: MessageRun) -> Iterator[Step]:
        rows, cut = _Rows(self._changes), False
        for read in self._read(run):
            if not isinstance(read, Block | StreamAbort | StreamCommit):
                rows.add(read)
                continue
            if rows.hold_news:
                yield rows.step()
                rows = _Rows(self._changes)
            yield read
            cut = True
        if rows.hold_news or not cut:
            yield rows.step()

    def _read(self, run: MessageRun) -> Iterator[Event | Block | StreamAbort | StreamCommit]:
        block: list[tuple[int, bytes]] = []
        for index in range(len(run.ends)):
            message = run.message(index)
            if message[:1] == b"k":
                reached = messages.keepalive(message)
                if self._block is None and self._changes.transaction is None:
                    self._changes.reach(reached)
                continue
            data = messages.xlog_data(message)
            if self._block is None:
                yield from self._rare(data) if data.kind in "SEcA" else self._changes.read(data)
            elif data.kind == "E":
                data.reader().end()
                if block:
                    yield _block(self._block, block)
                self._block, block = None, []
            else:
                block += self._inner(data, message, self._block)
        if block and self._block is not None:
            yield _block(self._block, block)

    def _rare(self, data: XLogData) -> Iterator[StreamAbort | StreamCommit]:
        reader = data.reader()
        if self._changes.transaction is not None:
            raise reader.malformed("it stands inside a transaction")
        if data.kind == "S":
            self._block = messages.stream_start(reader)
        elif data.kind == "c":
            yield StreamCommit(*messages.stream_commit(reader))
        elif data.kind == "A":
            abort = StreamAbort(*messages.stream_abort(reader))
            if abort.subxid == abort.xid:
                self._relations.forget(abort.xid)
            yield abort
        else:
            raise reader.malformed("no block of a streamed transaction is open")

    def _inner(self, data: XLogData, message: bytes, top: int) -> Iterator[tuple[int, bytes]]:
        reader = data.reader()
        if data.kind == "O":
            messages.origin(reader)
        elif data.kind in "RYIUDTM":
            xid = reader.uint32()
            if data.kind == "R":
                self._relations.announce(top, reader.uint32(), data.lsn)
            yield xid, message
        else:
            raise reader.malformed("it cannot stand in a block of a streamed transaction")

    def replay(self, commit: StreamCommit, runs: Iterable[MessageRun]) -> Iterator[DecodedRows]:
        relations = self._relations.of_streamed(commit.xid)
        changes = _PlainChanges(relations, self._changes.start, streamed=True)
        dropped = commit.commit_lsn < self._changes.start
        changes.transaction = _PlainTransaction(commit.commit_lsn, commit.committed_at, commit.xid, dropped)
        for run in runs:
            rows = _Rows(changes)
            for index in range(len(run.ends)):
                for event in changes.read(messages.xlog_data(run.message(index))):
                    rows.add(event)
            if rows.hold_news:
                yield rows.step()
        self._relations.adopt(relations)
        position = self._changes.position = max(self._changes.position, commit.end_lsn)
        yield DecodedRows(EMPTY, 0, position)


class _PlainChanges:
    """The open transaction and the tables described: what it takes to read changes."""

    def __init__(self, relations: Relations, start: Lsn, *, streamed: bool = False) -> None:
        self.relations = relations
        self.start = self.position = start
        self.moved = False
        self.sent_at = 0
        """When the last immediate message was sent."""
        self.transaction: _PlainTransaction | None = None
        self._streamed = streamed

    def reach(self, position: Lsn) -> None:
        """Move the position on, never back."""
        self.position = max(self.position, position)
        self.moved = True

    def read(self, data: XLogData) -> Iterator[Event]:
        """Yield the events of one message, unless its transaction is to be left out."""
        event = self._event(data)
        if event is not None and not self._left_out(event):
            yield event
        if isinstance(event, Commit):
            self.transaction = None

    def _left_out(self, event: Event) -> bool:
        if isinstance(event, Message) and not event.transactional:
            return event.commit_lsn < self.start
        return self.transaction is not None and self.transaction.dropped

    def _event(self, data: XLogData) -> Event | None:
        reader = data.reader(streamed=self._streamed)
        match data.kind:
            case "I" | "U" | "D":
                return self._row(data, reader)
            case "B" if not self._streamed:
                return self._begin(reader)
            case "C" if not self._streamed:
                return self._commit(reader)
            case "R":
                xid = self.transaction.xid if self.transaction else 0
                schema = self.relations.describe(messages.relation(reader), data.lsn, xid)
                commit_lsn = self.transaction.commit_lsn if self.transaction else data.lsn
                return Relation(data.lsn, commit_lsn, schema)
            case "T":
                return self._truncate(reader)
            case "M":
                return self._message(reader, data)
            case "Y":
                messages.data_type(reader)
            case "O" if not self._streamed:
                messages.origin(reader)
            case _:
                raise reader.malformed("it is of an unknown kind")
        return Unsupported(data.lsn, data.kind)

    def _begin(self, reader: Reader) -> Event:
        commit_lsn, committed_at, xid = reader.position(), reader.time(), reader.uint32()
        reader.end()
        if self.transaction is not None:
            raise reader.malformed("a transaction begins inside another")
        self.transaction = _PlainTransaction(commit_lsn, committed_at, xid, commit_lsn < self.start)
        return Begin(reader.lsn, commit_lsn, _time(committed_at), xid)

    def _commit(self, reader: Reader) -> Event:
        reader.no_flags()
        commit_lsn, end_lsn, committed_at = reader.position(), reader.position(), reader.time()
        reader.end()
        if self._open(reader).commit_lsn != commit_lsn:
            raise reader.malformed("it commits at another place than the transaction announced")
        if end_lsn <= commit_lsn:
            raise reader.malformed("it ends before it commits")
        self.reach(end_lsn)
        return Commit(reader.lsn, commit_lsn, 0, end_lsn, _time(committed_at))

    def _row(self, data: XLogData, reader: Reader) -> Event:
        transaction, table_id = self._open(reader), TableId(reader.uint32())
        schema = self.relations.get(table_id)
        if schema is None:
            raise reader.malformed(f"table {table_id} was not described")
        width = len(schema.columns)
        mark, old, new = reader.int8(), None, None
        unchanged: tuple[int, ...] = ()
        if data.kind != "I" and mark in b"KO":
            old = (mark == ord("K"), _tuple(reader, width)[0])
            mark = reader.int8() if data.kind == "U" else 0
        if data.kind != "D" and mark == ord("N"):
            new, unchanged = _tuple(reader, width, new=True)
        if (data.kind == "D" and old is None) or (data.kind != "D" and new is None):
            raise reader.malformed("a row is missing in it")
        reader.end()
        place = (data.lsn, transaction.commit_lsn, transaction.next(), table_id)
        if new is None:
            return Delete(*place, old)
        if data.kind == "U":
            return Update(*place, new, old, unchanged)
        return Insert(*place, new, unchanged)

    def _truncate(self, reader: Reader) -> Event:
        truncate, transaction = messages.truncate(reader), self._open(reader)
        if any(self.relations.get(table_id) is None for table_id in truncate.table_ids):
            raise reader.malformed("it truncates a table that was not described")
        options = truncate.cascade | truncate.restart_identity << 1
        first = transaction.seq
        transaction.seq += len(truncate.table_ids)
        tables = tuple(map(TableId, truncate.table_ids))
        return Truncate(reader.lsn, transaction.commit_lsn, first, options, tables)

    def _message(self, reader: Reader, data: XLogData) -> Event | None:
        message = messages.logical_message(reader)
        silent = message.prefix == HEARTBEAT_PREFIX
        fields = (message.transactional, message.prefix, message.content)
        if message.transactional:
            transaction = self._open(reader)
            return None if silent else Message(data.lsn, transaction.commit_lsn, transaction.next(), *fields)
        if self.transaction is not None:
            raise reader.malformed("it is an immediate message inside a transaction")
        self.sent_at = reader.check_time(data.sent_at)
        self.reach(message.lsn)
        return None if silent else Message(message.lsn, message.place, 0, *fields)

    def _open(self, reader: Reader) -> _PlainTransaction:
        if self.transaction is None:
            raise reader.malformed("no transaction has begun")
        return self.transaction


class _Rows:
    """Events on their way to a batch."""

    def __init__(self, changes: _PlainChanges) -> None:
        self._changes = changes
        changes.moved = False
        self._rows: list[tuple[Any, ...]] = []
        self._ended = 0

    @property
    def hold_news(self) -> bool:
        return bool(self._rows) or self._changes.moved

    def add(self, event: Event) -> None:
        self._rows += _rows(event, self._changes)
        if isinstance(event, Commit) or (isinstance(event, Message) and not event.transactional):
            self._ended = len(self._rows)

    def step(self) -> DecodedRows:
        position = self._changes.position if self._changes.moved else None
        if not self._rows:
            return DecodedRows(EMPTY, 0, position)
        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*self._rows, strict=True), SCHEMA.types, strict=True)
        ]
        return DecodedRows(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), self._ended, position)


def _rows(event: Event, changes: _PlainChanges) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the spool that an event makes."""
    rows: list[tuple[TableId, Op, OldRow | None, Row | None, tuple[int, ...]]]
    match event:
        case Insert(table_id=table_id, table_row=after):
            unchanged = event.unchanged
            rows = [(table_id, Op.INSERT, None, after, unchanged)]
        case Update(table_id=table_id, table_row=after, old_table_row=old, unchanged=unchanged):
            rows = [(table_id, Op.UPDATE, old, after, unchanged)]
        case Delete(table_id=table_id, old_table_row=old):
            rows = [(table_id, Op.DELETE, old, None, ())]
        case Truncate(options=options, rel_ids=tables):
            chosen: Row = TruncateMessage(tables, bool(options & 1), bool(options & 2)).options
            rows = [(table_id, Op.TRUNCATE, None, chosen, ()) for table_id in tables]
        case Message(transactional=transactional, prefix=prefix, content=content):
            values = LogicalMessage(transactional, event.start_lsn, prefix, content).values
            rows = [(NO_TABLE, Op.MESSAGE, None, values, ())]
        case _:
            return
    transaction = changes.transaction or _PlainTransaction(
        event.commit_lsn, changes.sent_at, 0, dropped=False
    )
    for seq, (table_id, op, old, new, unchanged) in enumerate(rows, event.seq):
        schema = changes.relations.get(table_id)
        kind = BeforeKind.NONE if old is None else BeforeKind.KEY if old[0] else BeforeKind.FULL
        yield (
            table_id, schema.version if schema and op != Op.MESSAGE else 0, int(op),
            event.commit_lsn.value, event.start_lsn.value, seq,
            transaction.xid, transaction.committed_at + EPOCH_US,
            int(kind), old[1] if old else None, new, unchanged or None,
        )  # fmt: skip


def _tuple(reader: Reader, width: int, *, new: bool = False) -> tuple[Row, tuple[int, ...]]:
    """
    int16 columns, then for each  n  or  u  or  t | int32 length | bytes
    """
    if reader.int16() != width:
        raise reader.malformed("it has another number of columns than its table")
    values: list[str | None] = []
    unchanged = []
    data, at = reader.rest()
    for column in range(width):
        kind = data[at : at + 1]
        at += 1
        if kind == b"t":
            start = at + 4
            length = int.from_bytes(data[at:start], "big", signed=True)
            at = start + length
            if not start <= at <= len(data):
                raise reader.malformed("a value in it ends early")
            try:
                values.append(data[start:at].decode())
            except UnicodeDecodeError:
                values.append("\0" * length)
        elif kind == b"n":
            values.append(None)
        elif kind == b"u" and new:
            unchanged.append(column)
            values.append(None)
        else:
            raise reader.malformed(f"it holds a value of the unknown kind {kind!r}")
    reader.skip_to(at)
    return tuple(values), tuple(unchanged)


def _block(xid: int, inner: list[tuple[int, bytes]]) -> Block:
    xids = np.array([xid for xid, _ in inner], np.int64)
    return Block(xid, MessageRun.of([message for _, message in inner]), xids)


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)

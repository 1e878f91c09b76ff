"""The production decoder: runs of messages in, Arrow batches out, with the kernels doing the rows.

A run is scanned from front to back. Where the kernel stops at a rare message, Python handles it and the
scan goes on; the rows before and after it land in the same batch. Only the messages of streamed
transactions (`Block`, `StreamAbort`, `StreamCommit`) cut a batch, because their order counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from penstock.capture import kernels, messages
from penstock.capture.messages import EPOCH_US, HEARTBEAT_PREFIX, Reader, RelationMessage, XLogData
from penstock.capture.relations import Relations
from penstock.capture.row_buffers import Row, RowBuffers, arrays
from penstock.capture.runs import Block, DecodedRows, MessageRun, Schemas, Step, StreamAbort, StreamCommit
from penstock.model import NO_TABLE, ZERO, Lsn, TableSchema
from penstock.model.compiled import Int64s
from penstock.model.errors import MalformedMessage
from penstock.spool.segment import EMPTY, Op

XID_BYTES = 4
"""Inside a streamed transaction every message has its xid behind its kind."""

WRONG = {
    kernels.SHORT: "it ends early",
    kernels.TRAILING: "bytes follow its end",
    kernels.KIND: "it is of an unknown kind",
    kernels.LSN: "it holds an impossible LSN",
    kernels.TIME: "it holds an impossible time",
    kernels.FLAGS: "it holds unknown flags",
    kernels.NESTED: "a transaction begins inside another",
    kernels.NOT_BEGUN: "it commits a transaction that did not begin",
    kernels.OTHER_COMMIT: "it commits at another place than the transaction announced",
    kernels.EARLY_END: "it ends before it commits",
    kernels.OUTSIDE: "it is a change outside of any transaction",
    kernels.NO_TABLE: "it changes a table that was not described",
    kernels.WIDTH: "it has another number of columns than its table",
    kernels.NO_TUPLE: "a row is missing in it",
    kernels.VALUE: "it holds a value of an unknown kind",
    kernels.LENGTH: "it holds a value of negative length",
}
"""What is wrong with the message that a scan stopped at."""


def warm_up() -> None:
    """Load the kernels (on a new machine: compile them, in some ten seconds) before the stream begins."""

    class NoTables:
        def resolve(self, relation: RelationMessage, xid: int) -> TableSchema:
            raise AssertionError(relation, xid)

    header = b"w" + struct.pack("!qqq", 1, 1, 0)
    message = header + b"M" + struct.pack("!bq", 0, 1) + b"\0" + struct.pack("!i", 0)
    block = [header + b"S" + struct.pack("!IB", 1, 1), header + b"E"]
    for _ in FastDecoder(NoTables(), ZERO).decode(MessageRun.of([message, *block])):
        pass


class FastDecoder:
    def __init__(self, schemas: Schemas, start: Lsn) -> None:
        """`start` is the position to begin at: a transaction that committed before it is left out."""
        self._start = start
        self._relations = Relations(schemas)
        self._changes = _Changes(self._relations, _transaction(start))
        self._block: int | None = None
        """The xid of the streamed block that is arriving."""

    def decode(self, run: MessageRun) -> Iterator[Step]:
        batch, at, cut = RowBuffers(run), 0, False
        step: Step | None
        while at < len(run.ends):
            if self._block is not None:
                step, at = self._gather(run, at, self._block)
            else:
                at = self._changes.scan(batch, at)
                if at == len(run.ends):
                    break
                step = self._rare(batch, messages.xlog_data(run.message(at)))
                at += 1
            if step is not None:
                if batch.holds_news:
                    yield self._changes.rows(batch)
                    batch = RowBuffers(run)
                yield step
                cut = True
        if batch.holds_news or not cut:
            yield self._changes.rows(batch)

    def _rare(self, batch: RowBuffers, message: XLogData) -> Step | None:
        if message.kind not in "SEcA":
            self._changes.rare(batch, message)
            return None
        reader = message.reader()
        if self._changes.is_open:
            raise reader.malformed("it stands inside a transaction")
        match message.kind:
            case "S":
                self._block = messages.stream_start(reader)
                return None
            case "c":
                return StreamCommit(*messages.stream_commit(reader))
            case "A":
                abort = StreamAbort(*messages.stream_abort(reader))
                if abort.subxid == abort.xid:
                    self._relations.forget(abort.xid)
                return abort
        raise reader.malformed("no block of a streamed transaction is open")

    def _gather(self, run: MessageRun, first: int, xid: int) -> tuple[Block | None, int]:
        """The block from a message on, up to its end or the run's; and the message to go on with."""
        data, ends = arrays(run)
        xids = np.full(len(ends), -1, np.int64)
        at = first
        while (at := kernels.gather(data, ends, at, xids)) < len(ends):
            message = messages.xlog_data(run.message(at))
            at += 1
            if message.kind == "E":
                message.reader().end()
                self._block = None
                break
            if message.kind == "R":
                reader = Reader(message.payload, message.lsn)
                reader.int8()
                xids[at - 1], table_id = reader.uint32(), reader.uint32()
                self._relations.announce(xid, table_id, message.lsn)
            elif message.kind == "O":
                messages.origin(message.reader())
            else:
                raise message.reader().malformed("it cannot stand in a block of a streamed transaction")
        return _block(xid, run, xids, first, at), at

    def replay(self, commit: StreamCommit, runs: Iterable[MessageRun]) -> Iterator[DecodedRows]:
        relations = self._relations.of_streamed(commit.xid)
        transaction = _transaction(self._start, commit)
        changes = _Changes(relations, transaction, XID_BYTES)
        for run in runs:
            rows = changes.replay(run)
            del run  # its rows are written before the next one is asked for
            if rows is not None:
                yield rows
            del rows
        self._relations.adopt(relations)
        yield DecodedRows(EMPTY, 0, self._changes.reach(commit.end_lsn))


class _Changes:
    """The open transaction and the tables described: what it takes to read changes."""

    def __init__(self, relations: Relations, transaction: Int64s, prefix: int = 0) -> None:
        self._relations = relations
        self._transaction = transaction
        self._prefix = prefix

    @property
    def is_open(self) -> bool:
        return bool(self._transaction[kernels.OPEN])

    def reach(self, position: Lsn) -> Lsn:
        """Move the position on, never back."""
        self._transaction[kernels.POSITION] = max(position.value, self._transaction[kernels.POSITION])
        return Lsn(int(self._transaction[kernels.POSITION]))

    def scan(self, batch: RowBuffers, first: int) -> int:
        """Read messages up to the next rare one, or the run's end; returns its place."""
        batch.totals[kernels.NEXT] = first
        batch.make_room(len(batch.ends) - first)
        while (code := self._scan(batch)) == kernels.TEXT:
            batch.blank(int(batch.totals[kernels.NEXT]), self._prefix)
            self._transaction[kernels.SEQ] -= 1  # the row comes again
        at = int(batch.totals[kernels.NEXT])
        if code in WRONG:
            lsn = messages.position(batch.run.message(at))
            raise MalformedMessage(f"a replication message does not parse: {WRONG[code]}", lsn=lsn)
        return at

    def _scan(self, batch: RowBuffers) -> int:
        return kernels.scan(
            batch.data, batch.ends, self._prefix, self._relations.lookup, self._transaction,
            batch.fixed, batch.totals,
        )  # fmt: skip

    def replay(self, run: MessageRun) -> DecodedRows | None:
        """Return the rows of a run of a streamed transaction, if there are any."""
        batch, at = RowBuffers(run), 0
        while (at := self.scan(batch, at)) < len(run.ends):
            self.rare(batch, messages.xlog_data(run.message(at)))
            at += 1
        return self.rows(batch) if batch.holds_news else None

    def rare(self, batch: RowBuffers, message: XLogData) -> None:
        reader = message.reader(streamed=self._prefix > 0)
        match message.kind:
            case "R":
                xid = int(self._transaction[kernels.XID])
                self._relations.describe(messages.relation(reader), message.lsn, xid)
            case "Y":
                messages.data_type(reader)
            case "O" if not self._prefix:
                messages.origin(reader)
            case "T":
                self._truncate(batch, reader)
            case "M":
                self._message(batch, reader, message.sent_at)
            case _:
                raise reader.malformed("it is of an unknown kind")

    def _truncate(self, batch: RowBuffers, reader: Reader) -> None:
        truncate = messages.truncate(reader)
        self._check_open(reader)
        for table_id in truncate.table_ids:
            schema = self._relations.get(table_id)
            if schema is None:
                raise reader.malformed(f"it truncates table {table_id}, which was not described")
            self._add(batch, Row(Op.TRUNCATE, table_id, schema.version, reader.lsn, truncate.options))

    def _message(self, batch: RowBuffers, reader: Reader, sent_at: int) -> None:
        message = messages.logical_message(reader)
        silent = message.prefix == HEARTBEAT_PREFIX
        row = Row(Op.MESSAGE, NO_TABLE, 0, message.lsn, message.values)
        if message.transactional:
            self._check_open(reader)
            if not silent:
                self._add(batch, row._replace(lsn=reader.lsn))
            return
        if self.is_open:
            raise reader.malformed("it is an immediate message inside a transaction")
        own = _transaction(ZERO, StreamCommit(0, message.place, message.lsn, reader.check_time(sent_at)))
        if not silent and message.place.value >= self._transaction[kernels.START]:
            batch.add(row, own)
        self.reach(message.lsn)
        batch.totals[kernels.MOVED], batch.totals[kernels.ENDED] = 1, batch.totals[kernels.ROWS]

    def _add(self, batch: RowBuffers, row: Row) -> None:
        if not self._transaction[kernels.DROPPED]:
            batch.add(row, self._transaction)
        self._transaction[kernels.SEQ] += 1

    def _check_open(self, reader: Reader) -> None:
        if not self.is_open:
            raise reader.malformed("it is a change outside of any transaction")

    def rows(self, batch: RowBuffers) -> DecodedRows:
        moved = bool(batch.totals[kernels.MOVED])
        position = Lsn(int(self._transaction[kernels.POSITION])) if moved else None
        return DecodedRows(batch.to_arrow(), int(batch.totals[kernels.ENDED]), position)


def _transaction(start: Lsn, commit: StreamCommit | None = None) -> Int64s:
    """Return the kernels' view of a transaction: of none, at a position, or of one whose commit is known."""
    transaction = np.zeros(8, np.int64)
    transaction[kernels.START] = transaction[kernels.POSITION] = start.value
    if commit is not None:
        transaction[kernels.OPEN] = 1
        transaction[kernels.COMMIT_LSN] = commit.commit_lsn.value
        transaction[kernels.COMMITTED_AT] = commit.committed_at + EPOCH_US
        transaction[kernels.XID] = commit.xid
        transaction[kernels.DROPPED] = commit.commit_lsn < start
    return transaction


def _block(xid: int, run: MessageRun, xids: Int64s, first: int, stop: int) -> Block | None:
    """The messages among those from `first` on that got an xid, cut out of the run."""
    kept = np.flatnonzero(xids[first:stop] >= 0) + first
    if len(kept) == 0:
        return None
    if kept[-1] - kept[0] + 1 == len(kept):
        start = int(run.ends[kept[0] - 1]) if kept[0] else 0
        inner = MessageRun(memoryview(run.data)[start : int(run.ends[kept[-1]])], run.ends[kept] - start)
    else:
        inner = MessageRun.of([run.message(int(index)) for index in kept])
    return Block(xid, inner, xids[kept])

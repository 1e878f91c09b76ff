"""The changes of a table as messages, up to the first that cannot be one.

A change that cannot be delivered (`batch.refuse`), or a message larger than the server takes, stops its table
there: every change before is a message, none behind. Where exactly that is hangs on the changes alone, not on
how they are cut into batches: what was published is known by it.

Runs on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.changes.columns import OPERATIONS
from penstock.changes.encoded import LONGEST_SHOWN
from penstock.changes.slices import Slice, read_slice
from penstock.destinations.batch import meant_rows, refuse
from penstock.destinations.nats import documents
from penstock.destinations.nats.change_messages import NUMBERS, OPS, ChangeMessages, MessageBlock
from penstock.destinations.nats.documents import HEADERS, Form
from penstock.destinations.nats.logical_messages import LogicalMessages
from penstock.destinations.nats.messages import Messages, Place, Stop, change_ranks
from penstock.destinations.nats.schemas import Versions
from penstock.destinations.nats.subjects import change_subject
from penstock.destinations.protocol import Run, TableChanges
from penstock.model import Lsn, TableSchema
from penstock.model.errors import MessageTooLarge, PenstockError, Scope


class TableMessages:
    """`earlier` is where the table stopped when the same changes were published before. It stops there once
    more, even if it could go on: what others had behind it may be published already."""

    def __init__(
        self, changes: TableChanges, form: Form, versions: Versions, earlier: Stop | None = None
    ) -> None:
        self.changes = changes
        self._versions = versions
        self._form = form
        is_of_these = earlier is not None and earlier.place.commit_lsn >= changes.start.value
        self._earlier = earlier if is_of_these else None
        self.stop: Stop | None = None
        self._last = Place.of_change(changes.start.value, -1)

    def __iter__(self) -> Iterator[Messages]:
        for run in self.changes.runs:
            for messages in self._of_run(run):
                fitting = self._up_to_earlier_stop(messages)
                if len(fitting):
                    self._last = fitting.last
                    yield fitting
                if self.stop is not None:
                    return
            if self.stop is not None:
                return

    def _up_to_earlier_stop(self, messages: Messages) -> Messages:
        if self._earlier is None:
            return messages
        count = messages.through(self._earlier.place.before)
        if count < len(messages):
            self.stop = self._earlier
        return messages.slice(0, count)

    def _of_run(self, run: Run) -> Iterator[Messages]:
        render = ChangeMessages(run.delivery, self._form.encoding, self._form.id_prefix)
        subjects = tuple(change_subject(run.delivery.table.name, OPERATIONS[op]).encode() for op in OPS)
        schema_sent = run.follow is None
        for table, rows in meant_rows(self.changes, run):
            if not schema_sent:
                schema_sent = True
                yield from self._schema(run, _place(rows, 0).before)
                if self.stop is not None:
                    return
            for block in self._fitting(render, table, rows):
                yield _messages(block, subjects)
            if self.stop is not None:
                return
        if not schema_sent:
            yield from self._schema(run, self._last.behind)

    def _schema(self, run: Run, place: Place) -> Iterator[Messages]:
        """Yield the table's new schema; the table stops if even that is too large."""
        version, details = self._versions[run.delivery.id, run.delivery.table.version]
        message = documents.schema_message(run.delivery, self._form, version, place, details)
        size = message.size + HEADERS
        if size <= self._form.largest:
            yield message
        else:
            error = MessageTooLarge(f"the schema has {size} bytes, the server takes {self._form.largest}")
            self.stop = Stop(place, error.at(table=run.delivery.table.name))

    def _fitting(
        self, render: ChangeMessages, table: TableSchema, rows: pa.RecordBatch
    ) -> Iterator[MessageBlock]:
        """Yield the messages of rows up to the first that cannot be one."""
        done = 0
        try:
            refuse(rows, table)
            for block in render.blocks(rows):
                too_large = np.flatnonzero(block.ends - block.starts > self._form.largest - HEADERS)
                if len(too_large):
                    first = int(too_large[0])
                    yield block.slice(0, first)
                    self._stop_at(rows, done + first, self._too_large(block, first, table))
                    return
                done += len(block)
                yield block
        except PenstockError as error:
            if error.scope is not Scope.TABLE:
                raise
            rest = rows.slice(done)
            count = self._readable(render, table, rest)
            yield from self._fitting(render, table, rest.slice(0, count))
            if self.stop is None:
                self._stop_at(rest, count, self._refusal(render, table, rest.slice(count, 1)) or error)

    def _readable(self, render: ChangeMessages, table: TableSchema, rows: pa.RecordBatch) -> int:
        """Return how many of the rows, of which one cannot be a message, come before it."""
        fine, refused = 0, len(rows)
        while refused - fine > 1:
            middle = (fine + refused) // 2
            if self._refusal(render, table, rows.slice(fine, middle - fine)) is None:
                fine = middle
            else:
                refused = middle
        return fine

    def _refusal(
        self, render: ChangeMessages, table: TableSchema, rows: pa.RecordBatch
    ) -> PenstockError | None:
        try:
            refuse(rows, table)
            deque(render.blocks(rows), 0)
        except PenstockError as error:
            return error
        return None

    def _stop_at(self, rows: pa.RecordBatch, row: int, error: PenstockError) -> None:
        place = _place(rows, row)
        self.stop = Stop(place, error.at(table=self.changes.delivery.table.name, lsn=Lsn(place.commit_lsn)))

    def _too_large(self, block: MessageBlock, row: int, table: TableSchema) -> PenstockError:
        change = block.changes.slice(row, 1)
        values = (change["after"][0].as_py() or change["before"][0].as_py()) or []
        by_name = dict(zip(table.column_names, values, strict=False))
        key = [(column.name, by_name.get(column.name)) for column in table.columns if column.key]
        size = int(block.ends[row] - block.starts[row])
        return MessageTooLarge(
            f"a change has {size + HEADERS} bytes as a message, and the server takes {self._form.largest}",
            key=", ".join(f"{name}={(value or 'NULL')[:LONGEST_SHOWN]}" for name, value in key) or None,
        )


def _place(rows: pa.RecordBatch, row: int) -> Place:
    return Place.of_change(rows["commit_lsn"][row].as_py(), rows["seq"][row].as_py())


def _messages(block: MessageBlock, subjects: tuple[bytes, ...]) -> Messages:
    return Messages(
        block.payload,
        block.starts,
        block.ends,
        subjects,
        NUMBERS[block.operations],
        block.ids,
        np.asarray(block.changes["commit_lsn"]),
        change_ranks(np.asarray(block.changes["seq"])),
    )


def logical_messages(parts: Sequence[Slice], source: str, form: Form) -> Iterator[Messages]:
    """Yield the logical messages of a batch."""
    render = LogicalMessages(source, form)
    for part in parts:
        for rows in read_slice(part):
            yield render.messages(rows)

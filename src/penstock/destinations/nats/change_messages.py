"""Changes as messages: what a consumer is given of each.

    data                the new row; of a delete the key, other columns null; of a truncate nothing
    msg_id              {commit_lsn}-{seq}-{table}-{operation}: another for each change, the same each time
    operation           INSERT, UPDATE, DELETE, TRUNCATE
    relation_id         the table's oid: it survives a rename
    subject, table      as `subjects` has them
    source              the name of the source
    lsn                 where the change itself stands in the WAL
    commit_lsn, seq     where its transaction committed, and its place in that: the order of changes
    xid, committed_at   of the transaction
    old                 the columns of the old row that the stream gave: the identity's, or all of them
    unchanged           the columns whose value PostgreSQL did not send: absent in `data`, they keep theirs

An update that gives a row another key is one message: `old` has the key it had. A delete of a table without a
key has all columns in `data`. LSNs have all their digits, so that they sort as text.

Nothing is done row by row in Python: a column is encoded at once (`changes/encoded`), and the columns are put
together to messages (`changes/joined`), as many at once as stay in the processor's cache.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.changes.columns import OPERATIONS
from penstock.changes.copy_text import cut, offsets_of
from penstock.changes.encoded import INT8, TEXT, EncodedColumn, Encoding, encoded, encoded_constants
from penstock.changes.joined import Joiner, Mask
from penstock.changes.members import Member, add_list, add_map
from penstock.changes.message_pack import map_header
from penstock.changes.position_text import lsn_text, time_text
from penstock.changes.row_lines import ChangePart
from penstock.changes.text_columns import TextColumn, TextRows
from penstock.destinations.nats.subjects import change_subject, token
from penstock.destinations.protocol import Delivery
from penstock.model import ColumnType
from penstock.model.compiled import Bytes, Int8s, Int64s
from penstock.model.errors import ValueRefused
from penstock.spool.segment import BeforeKind, Op

FIELDS = (
    *("data", "msg_id", "operation", "relation_id", "subject", "table", "source"),
    *("lsn", "commit_lsn", "seq", "xid", "committed_at"),
)
"""What every message has, in this order; then `old` and `unchanged`."""

OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)
NUMBERS = np.zeros(128, np.int64)
NUMBERS[list(OPS)] = range(len(OPS))
"""The number of an operation among OPS, by its `Op`."""
_BESIDES_DATA = 300
"""About how many bytes a message has besides the data."""


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Some messages, in the order of their changes."""

    changes: pa.RecordBatch
    """What they are messages of."""
    payload: Bytes
    starts: Int64s
    ends: Int64s
    """Message n is the bytes starts[n] up to ends[n] of `payload`."""
    ids: pa.StringArray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def operations(self) -> Int8s:
        """What each is: an `Op`."""
        return np.asarray(self.changes["op"])

    def slice(self, first: int, end: int) -> MessageBlock:
        part = slice(first, end)
        return MessageBlock(
            self.changes.slice(first, end - first),
            self.payload,
            self.starts[part],
            self.ends[part],
            self.ids[part],
        )

    def message(self, number: int) -> bytes:
        return self.payload[self.starts[number] : self.ends[number]].tobytes()


class ChangeMessages:
    """Makes messages of the changes of a table, under one version of its schema."""

    def __init__(self, delivery: Delivery, encoding: Encoding, id_prefix: str = "") -> None:
        """`id_prefix`: what ids begin with, where those of several sources would be the same."""
        table = delivery.table
        names = encoded_constants(table.column_names, encoding)
        self._table = table
        self._encoding = encoding
        self._names = names
        self._key = [place for place, column in enumerate(table.columns) if column.name in delivery.key]
        self._size = _BESIDES_DATA + sum(map(len, names)) + 2 * len(names)
        self._fields = _fields(encoding)
        self._of_operation = [self._constants(delivery, op) for op in OPS]
        self._id_prefix = id_prefix.encode()
        self._id_ends = [f"-{token(table.name)}-{OPERATIONS[op]}".encode() for op in OPS]

    def blocks(self, changes: pa.RecordBatch) -> Iterator[MessageBlock]:
        """Yield the messages of changes as the spool has them, a little at a time."""
        if not len(changes):
            return
        ends = _text_ends(changes["after"]) + _text_ends(changes["before"])
        for first, count in cut(ends + self._size * np.arange(1, len(changes) + 1)):
            yield self._block(changes.slice(first, count))

    def _block(self, changes: pa.RecordBatch) -> MessageBlock:
        truncates = np.asarray(changes["op"]) == Op.TRUNCATE
        if not truncates.any():
            messages, ids = self._messages(changes, ChangePart(changes, self._table))
            return MessageBlock(changes, messages.data, messages.offsets[:-1], messages.offsets[1:], ids)
        rows, emptied = changes.filter(pa.array(~truncates)), changes.filter(pa.array(truncates))
        some, some_ids = self._messages(rows, ChangePart(rows, self._table))
        others, other_ids = self._messages(emptied, None)
        order = np.argsort(np.concatenate([np.flatnonzero(~truncates), np.flatnonzero(truncates)]))
        return MessageBlock(
            changes,
            np.concatenate([some.data, others.data]),
            np.concatenate([some.offsets[:-1], others.offsets[:-1] + len(some.data)])[order],
            np.concatenate([some.offsets[1:], others.offsets[1:] + len(some.data)])[order],
            pa.concat_arrays([some_ids, other_ids]).take(pa.array(order)),
        )

    def _messages(
        self, changes: pa.RecordBatch, part: ChangePart | None
    ) -> tuple[EncodedColumn, pa.StringArray]:
        """Return the messages and their ids; truncates have no part."""
        message = Joiner(len(changes))
        has_old = np.asarray(changes["before_kind"]) != BeforeKind.NONE
        unsent = _unsent(part) if part is not None else {}
        has_unsent = np.any(list(unsent.values()), axis=0) if unsent else np.zeros(len(changes), np.bool_)
        self._begin(message, has_old.astype(np.int64) + has_unsent)
        add_map(message, self._encoding, self._data(part, unsent) if part is not None else [])
        ids = self._add_about(message, changes)
        if part is not None and has_old.any():
            self._add_field(message, "old", has_old)
            add_map(message, self._encoding, self._old(part), has_old)
        if unsent:
            self._add_field(message, "unchanged", has_unsent)
            members = [Member(self._names[place], where=where) for place, where in unsent.items()]
            add_list(message, self._encoding, members, has_unsent)
        if self._encoding is Encoding.JSON:
            message.constant(b"}")
        return message.joined(), ids

    def _begin(self, message: Joiner, further_fields: Int64s) -> None:
        if self._encoding is Encoding.JSON:
            message.constant(b"{")
        else:
            headers = [map_header(len(FIELDS) + more) for more in range(3)]
            message.choice(headers, further_fields)
        message.constant(self._fields["data"])

    def _data(self, part: ChangePart, unsent: dict[int, Mask]) -> list[Member]:
        """Return the columns of the new rows; of the rows that are gone, those of their key."""
        members = []
        new = TextRows.of(part.after)
        gone = part.deleted if part.deleted.any() else None
        old = TextRows.of(part.before) if gone is not None else new
        for place, name in enumerate(self._names):
            values = self._values(new, place)
            where = ~unsent[place] if place in unsent else None
            if gone is None or (self._key and place not in self._key):
                members.append(Member(name, values, where))
            else:
                members.append(Member(name, values, ~gone if where is None else where & ~gone))
                members.append(Member(name, self._values(old, place), gone))
        return members

    def _old(self, part: ChangePart) -> list[Member]:
        """Return the columns that the old rows gave."""
        full = np.asarray(part.changes["before_kind"]) == BeforeKind.FULL
        only_key = not full.any()
        before = TextRows.of(part.before)
        key = set(self._table.key)
        return [
            Member(name, self._values(before, place), None if place in key else full)
            for place, name in enumerate(self._names)
            if place in key or not only_key
        ]

    def _values(self, rows: TextRows, place: int) -> EncodedColumn:
        column = self._table.columns[place]
        try:
            return encoded(rows.column(place), column.type, self._encoding)
        except ValueRefused as refused:
            raise refused.at(table=self._table.name, column=column.name) from None

    def _add_about(self, message: Joiner, changes: pa.RecordBatch) -> pa.StringArray:
        """Add what a message says of the change itself; returns the ids."""
        operation = NUMBERS[np.asarray(changes["op"])]
        commit_lsn, lsn = lsn_text(np.asarray(changes["commit_lsn"])), lsn_text(np.asarray(changes["lsn"]))
        seq, xid = (TextColumn.decimal(np.asarray(changes[name])) for name in ("seq", "xid"))
        ids = self._ids(commit_lsn, seq, operation)
        self._add_column(message, "msg_id", ids)
        message.choice(self._of_operation, operation)
        self._add_column(message, "lsn", lsn)
        self._add_column(message, "commit_lsn", commit_lsn)
        self._add_column(message, "seq", seq, INT8)
        self._add_column(message, "xid", xid, INT8)
        self._add_column(message, "committed_at", time_text(changes["committed_at"]))
        return ids

    def _ids(self, commit_lsn: pa.StringArray, seq: TextColumn, operation: Int64s) -> pa.StringArray:
        ids = Joiner(len(seq))
        ids.constant(self._id_prefix)
        ids.texts(TextColumn.of(commit_lsn))
        ids.constant(b"-")
        ids.texts(seq)
        ids.choice(self._id_ends, operation)
        return ids.joined().texts()

    def _add_column(
        self, message: Joiner, field: str, text: pa.StringArray | TextColumn, type: ColumnType = TEXT
    ) -> None:
        self._add_field(message, field)
        message.values(encoded(text, type, self._encoding))

    def _add_field(self, message: Joiner, field: str, where: Mask | None = None) -> None:
        message.constant(self._fields[field], where)

    def _constants(self, delivery: Delivery, op: Op) -> bytes:
        """Return what all messages of one operation have in common."""
        operation, name = OPERATIONS[op], delivery.table.name
        texts = {
            "operation": operation.upper(),
            "subject": change_subject(name, operation),
            "table": token(name),
            "source": delivery.source,
        }
        values = dict(zip(texts, encoded_constants([*texts.values()], self._encoding), strict=True))
        values["relation_id"] = encoded_constants([str(delivery.table.id)], self._encoding, INT8)[0]
        return b"".join(self._fields[field] + values[field] for field in FIELDS if field in values)


def _fields(encoding: Encoding) -> dict[str, bytes]:
    """What stands before each field's value."""
    names = [*FIELDS, "old", "unchanged"]
    constants = encoded_constants(names, encoding)
    if encoding is Encoding.JSON:
        constants = [
            (b"" if name == FIELDS[0] else b",") + text + b":"
            for name, text in zip(names, constants, strict=True)
        ]
    return dict(zip(names, constants, strict=True))


def _unsent(part: ChangePart) -> dict[int, Mask]:
    """For each column that was not sent with every change: with which it was not."""
    unsent = {}
    for place in np.unique(part.unsent_places).tolist():
        unsent[place] = np.zeros(len(part), np.bool_)
        unsent[place][part.unsent_rows[part.unsent_places == place]] = True
    return unsent


def _text_ends(rows: pa.ListArray) -> Int64s:
    """Where the text of each row ends, if all stand one behind the other."""
    bounds = offsets_of(rows.values)[np.asarray(rows.offsets)]
    ends: Int64s = np.subtract(bounds[1:], bounds[0], dtype=np.int64)
    return ends

"""Decoders driven as the capture drives them, and what came of it in a form that compares."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock.capture.messages import RelationMessage
from penstock.capture.runs import Block, DecodedRows, Decoder, MessageRun, Step, StreamAbort, StreamCommit
from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.errors import MalformedMessage
from penstock.spool.segment import SCHEMA


class Versions:
    """Schemas for tests: the version of a table grows whenever its description differs."""

    def __init__(self) -> None:
        self.known: dict[int, list[TableSchema]] = {}

    def resolve(self, relation: RelationMessage, xid: int) -> TableSchema:  # noqa: ARG002
        versions = self.known.setdefault(relation.table_id, [])
        columns = tuple(
            Column(c.name, ColumnType(c.type_oid, "text", c.modifier), c.key) for c in relation.columns
        )
        schema = TableSchema(
            TableId(relation.table_id),
            len(versions) + 1,
            TableName(relation.schema, relation.name),
            ReplicaIdentity(relation.identity),
            columns,
        )
        for known in versions:
            if (known.name, known.identity, known.columns) == (schema.name, schema.identity, columns):
                return known
        versions.append(schema)
        return schema


@dataclass
class Outcome:
    """The steps taken, those of replays among them, and where the stream was refused, if it was."""

    steps: list[Step]
    refused: str | None

    @property
    def rows(self) -> pa.Table:
        return pa.Table.from_batches(
            [step.batch for step in self.steps if isinstance(step, DecodedRows)], SCHEMA
        )

    @property
    def position(self) -> Lsn | None:
        reached = [step.position for step in self.steps if isinstance(step, DecodedRows) and step.position]
        return reached[-1] if reached else None

    @property
    def ended(self) -> int:
        """How many of the rows belong to transactions that ended, as the spool's writer counts them."""
        ended = seen = 0
        for step in self.steps:
            if isinstance(step, DecodedRows):
                ended = seen + step.ended if step.position else ended
                seen += step.batch.num_rows
        return ended

    def listed(self) -> list[dict[str, Any]]:
        return self.rows.to_pylist()  # type: ignore[no-any-return]


class Kept:
    """Streamed transactions in memory; a rollback takes everything from its first message on with it."""

    def __init__(self) -> None:
        self._messages: dict[int, list[tuple[int, bytes]]] = {}

    def keep(self, block: Block) -> None:
        inner = [block.run.message(place) for place in range(len(block.run.ends))]
        self._messages.setdefault(block.xid, []).extend(zip(block.xids.tolist(), inner, strict=True))

    def roll_back(self, abort: StreamAbort) -> None:
        kept = self._messages.get(abort.xid, [])
        xids = [abort.xid if abort.subxid == abort.xid else xid for xid, _ in kept]
        if abort.subxid in xids:
            del kept[0 if abort.subxid == abort.xid else xids.index(abort.subxid) :]

    def runs(self, xid: int) -> list[MessageRun]:
        kept = [message for _, message in self._messages.pop(xid, [])]
        half = len(kept) // 2
        return [MessageRun.of(part) for part in (kept[:half], kept[half:]) if part]


def drive(decoder: Decoder, runs: Iterable[MessageRun]) -> Outcome:
    kept = Kept()
    outcome = Outcome([], None)
    try:
        for run in runs:
            for step in decoder.decode(run):
                outcome.steps.append(step)
                match step:
                    case Block():
                        kept.keep(step)
                    case StreamAbort():
                        kept.roll_back(step)
                    case StreamCommit():
                        outcome.steps.extend(decoder.replay(step, kept.runs(step.xid)))
    except MalformedMessage as error:
        outcome.refused = str(error.where.get("lsn"))
    return outcome


def cut(messages: Sequence[bytes], places: Iterable[int]) -> list[MessageRun]:
    """The messages as runs that end at these places."""
    bounds = sorted({0, len(messages), *(place % (len(messages) + 1) for place in places)})
    return [MessageRun.of(list(messages[a:b])) for a, b in pairwise(bounds)]


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    assert ours.refused == theirs.refused
    assert list(map(_plain, ours.steps)) == list(map(_plain, theirs.steps))
    for step in ours.steps:
        if isinstance(step, DecodedRows):
            step.batch.validate(full=True)


def _plain(step: Step) -> object:
    match step:
        case DecodedRows(batch, ended, position):
            return "rows", batch.to_pylist(), ended, position
        case Block(xid, run, xids):
            return "block", xid, run.data, run.ends.tolist(), xids.tolist()
    return step


def wrapped(lsn: str, data: bytes) -> bytes:
    """A message as the peek function gives it, as it would come over the wire."""
    position = Lsn.parse(lsn).value
    return struct.pack("!cQQq", b"w", position, position, 0) + data

"""What passes between the receiver, the decoder and the spool's writer.

The receiver gathers messages into a `Run`; a decoder turns a run into `Step`s, in order; the capture
carries them out. For an ordinary run that is one `Rows` step. Decoders do no I/O: they take bytes and
return Arrow, so they can be fuzzed and compared.

A large transaction may be streamed before it commits (protocol 2). Its messages come in blocks that the
decoder hands on undecoded (`Block`), because until the commit nobody knows its position, and parts of it
may still be rolled back (`StreamAbort`). With the `StreamCommit` the capture hands the kept runs back to
`Decoder.replay`, and from there on it is a transaction like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.capture.messages import RelationMessage
from penstock.model import Lsn, TableSchema
from penstock.model.errors import MalformedMessage


@dataclass(frozen=True, slots=True)
class MessageRun:
    """CopyData payloads laid end to end: message `i` is `data[ends[i - 1]:ends[i]]`.

    Each is an XLogData (`w`, start, end, time, then the pgoutput message) or a keepalive (`k`, end, time,
    reply wanted).
    """

    data: bytes | memoryview
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, messages: Sequence[bytes | memoryview]) -> MessageRun:
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        return cls(b"".join(messages), np.cumsum(lengths))

    def message(self, index: int) -> bytes:
        start, end = int(self.ends[index - 1]) if index else 0, int(self.ends[index])
        if not 0 <= start < end <= len(self.data):
            raise MalformedMessage(f"message {index} of a run is empty or cut off")
        return bytes(self.data[start:end])


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Decoded rows in the spool's schema. The first `ended` belong to transactions that ended, the last
    at `position`; `position` is None where no transaction ended (and no keepalive moved it)."""

    batch: pa.RecordBatch
    ended: int
    position: Lsn | None


@dataclass(frozen=True, slots=True)
class Block:
    """Messages of a transaction in progress; `xids[i]` is the (sub)transaction of message `i`."""

    xid: int
    run: MessageRun
    xids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The whole streamed transaction (`subxid == xid`) or one of its subtransactions was rolled back."""

    xid: int
    subxid: int


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: int
    """Microseconds since PostgreSQL's epoch, 2000-01-01 UTC."""


Step = DecodedRows | Block | StreamAbort | StreamCommit


class Schemas(Protocol):
    """Where a decoder asks which version of a schema a relation message describes, that came in the
    transaction `xid`."""

    def resolve(self, relation: RelationMessage, xid: int) -> TableSchema: ...


class Decoder(Protocol):
    def decode(self, run: MessageRun) -> Iterator[Step]:
        """Decode a run. State (the open transaction, the relations) carries over to the next one."""

    def replay(self, commit: StreamCommit, runs: Iterable[MessageRun]) -> Iterator[DecodedRows]:
        """Decode the kept blocks of a streamed transaction, now that its commit is known."""

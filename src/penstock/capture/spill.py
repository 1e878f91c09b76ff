"""Large transactions in progress, kept on disk until they commit or roll back.

The messages of each streamed transaction are kept as they came, run by run, in a file of its own. A
subtransaction that rolls back takes everything from its first message on with it: until it ends, nothing
but it and its own children can have written (PostgreSQL's own apply worker relies on the same).

These files mean nothing after a restart: the slot sends a transaction again until its commit is
acknowledged. They are removed at the start.
"""

from __future__ import annotations

import shutil
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from penstock.capture.runs import Block, MessageRun
from penstock.model import private


class Spill:
    """All transactions that are in progress, by xid."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._transactions: dict[int, _Transaction] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def keep(self, block: Block) -> None:
        """Write a block. Safe to call again with the same block after it failed (a full disk)."""
        if block.xid not in self._transactions:
            private.folder(self._folder)
            self._transactions[block.xid] = _Transaction(self._folder / f"{block.xid}.spill")
        self._transactions[block.xid].append(block)

    def roll_back(self, xid: int, subxid: int) -> None:
        if subxid == xid:
            self.forget(xid)
        elif xid in self._transactions:
            self._transactions[xid].roll_back(subxid)

    def runs(self, xid: int) -> Iterator[SpilledRun]:
        """Yield what is left of a transaction, in order."""
        if xid in self._transactions:
            yield from self._transactions[xid].runs()

    def forget(self, xid: int) -> None:
        gone = self._transactions.pop(xid, None)
        if gone is not None:
            gone.path.unlink(missing_ok=True)


class _Transaction:
    """One file: for each run the number of messages, their ends, their bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts: list[int] = []
        """The number of the first message of each run."""
        self._counts: list[int] = []
        """How many messages of each run are left."""
        self._offsets: list[int] = []
        """Where each run stands in the file."""
        self._messages = 0
        self._size = 0
        self._first_of: dict[int, int] = {}
        """The first message of each subtransaction."""

    def append(self, block: Block) -> None:
        ends = block.run.ends.astype(np.int64)
        head = struct.pack("!q", len(ends)) + ends.tobytes()
        with open(self.path, "r+b" if self._size else "wb", opener=private.opener) as file:
            file.seek(self._size)
            file.write(head)
            file.write(block.run.data)
        for xid, first in zip(*np.unique(block.xids, return_index=True), strict=True):
            self._first_of.setdefault(int(xid), self._messages + int(first))
        self._starts.append(self._messages)
        self._counts.append(len(ends))
        self._offsets.append(self._size)
        self._messages += len(ends)
        self._size += len(head) + len(block.run.data)

    def roll_back(self, subxid: int) -> None:
        first = self._first_of.get(subxid)
        if first is None or first >= self._messages:
            return
        self._messages = first
        runs = bisect_right(self._starts, first - 1) if first else 0
        if runs < len(self._offsets):
            self._size = self._offsets[runs]
        del self._starts[runs:], self._counts[runs:], self._offsets[runs:]
        if runs:
            self._counts[-1] = first - self._starts[-1]
        self._first_of = {xid: place for xid, place in self._first_of.items() if place < first}

    def runs(self) -> Iterator[SpilledRun]:
        with self.path.open("rb") as file:
            for kept, offset in zip(self._counts, self._offsets, strict=True):
                file.seek(offset)
                (count,) = struct.unpack("!q", file.read(8))
                yield SpilledRun(file, np.frombuffer(file.read(8 * count), np.int64)[:kept])


@dataclass(frozen=True, slots=True)
class SpilledRun:
    """A run whose bytes are on disk yet, where its file stands until the next run is asked for."""

    file: BinaryIO
    ends: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.ends[-1])

    def read(self) -> MessageRun:
        return MessageRun(self.file.read(self.size), self.ends)

"""What the stream has said of its tables: a decoder's memory of relation messages.

PostgreSQL describes a table before its first row, and again after a change; what it described holds for
every row that follows. A streamed transaction is described on its own, inside its blocks, and those
descriptions are read only when it commits. From then on PostgreSQL takes them for known to us; unless it
has described the table anew in between, outside of the transaction: the one that arrived last counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.capture.messages import RelationMessage
from penstock.capture.runs import Schemas
from penstock.model import Lsn, TableSchema

Arrival = int
"""A number that grows with every relation message that arrives."""


class Relations:
    """Descriptions of tables by table id, and `lookup`, the same for the kernels."""

    def __init__(self, schemas: Schemas, arrivals: Mapping[tuple[int, Lsn], Arrival] | None = None) -> None:
        self._schemas = schemas
        self._known: dict[int, tuple[TableSchema, int, Arrival]] = {}
        self._arrivals = arrivals
        """Where this is the memory of a replay: when each of its messages had arrived."""
        self._arrived: Arrival = 0
        self._streamed: dict[int, dict[tuple[int, Lsn], Arrival]] = defaultdict(dict)
        self.lookup: npt.NDArray[np.int64] = np.empty((3, 0), np.int64)
        """Table ids in order, their schema versions, their numbers of columns."""

    def describe(self, message: RelationMessage, lsn: Lsn, xid: int) -> TableSchema:
        schema = self._schemas.resolve(message, xid)
        if self._arrivals is not None:
            arrival = self._arrivals.get((message.table_id, lsn), 0)
        else:
            arrival = self._arrived = self._arrived + 1
        self._remember(message.table_id, (schema, len(message.columns), arrival))
        return schema

    def get(self, table_id: int) -> TableSchema | None:
        known = self._known.get(table_id)
        return known[0] if known else None

    def announce(self, xid: int, table_id: int, lsn: Lsn) -> None:
        """A description has arrived in a block of a streamed transaction; it is read when that commits."""
        self._arrived += 1
        self._streamed[xid][table_id, lsn] = self._arrived

    def forget(self, xid: int) -> None:
        """The streamed transaction was rolled back."""
        self._streamed.pop(xid, None)

    def of_streamed(self, xid: int) -> Relations:
        """The memory for the replay of a streamed transaction: it has described all of its tables."""
        return Relations(self._schemas, self._streamed.pop(xid, {}))

    def adopt(self, replayed: Relations) -> None:
        """The streamed transaction committed: what it described holds from now on, unless outdated."""
        for table_id, known in replayed._known.items():
            if table_id not in self._known or self._known[table_id][2] < known[2]:
                self._remember(table_id, known)

    def _remember(self, table_id: int, known: tuple[TableSchema, int, Arrival]) -> None:
        entry = (table_id, known[0].version, known[1])
        place = int(np.searchsorted(self.lookup[0], table_id))
        if table_id in self._known:
            self.lookup[:, place] = entry
        else:
            self.lookup = np.ascontiguousarray(np.insert(self.lookup, place, entry, axis=1))
        self._known[table_id] = known

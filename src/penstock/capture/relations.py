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
        self._descriptions: dict[int, tuple[TableSchema, int, Arrival]] = {}
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
        description = self._descriptions.get(table_id)
        return description[0] if description else None

    def announce(self, xid: int, table_id: int, lsn: Lsn) -> None:
        """Note a description in a block of a streamed transaction; it is read when that commits."""
        self._arrived += 1
        self._streamed[xid][table_id, lsn] = self._arrived

    def forget(self, xid: int) -> None:
        """Forget a streamed transaction that was rolled back."""
        self._streamed.pop(xid, None)

    def of_streamed(self, xid: int) -> Relations:
        """Return the descriptions for the replay of a streamed transaction, which sends all that it needs."""
        return Relations(self._schemas, self._streamed.pop(xid, {}))

    def adopt(self, replayed: Relations) -> None:
        """Take over what a streamed transaction described, now that it committed, unless outdated."""
        for table_id, description in replayed._descriptions.items():
            if table_id not in self._descriptions or self._descriptions[table_id][2] < description[2]:
                self._remember(table_id, description)

    def _remember(self, table_id: int, description: tuple[TableSchema, int, Arrival]) -> None:
        entry = (table_id, description[0].version, description[1])
        place = int(np.searchsorted(self.lookup[0], table_id))
        if table_id in self._descriptions:
            self.lookup[:, place] = entry
        else:
            self.lookup = np.ascontiguousarray(np.insert(self.lookup, place, entry, axis=1))
        self._descriptions[table_id] = description

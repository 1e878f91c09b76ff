"""The events of a replication stream, as plain objects: one for each kind of thing that happens.

Values are the text that PostgreSQL sent, `None` for NULL. The place of a row event in the stream is
`(commit_lsn, seq)`: it orders and identifies it. `start_lsn` alone does not, since the rows of one WAL
record share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.model.lsn import Lsn
from penstock.model.schema import TableId, TableSchema

Row = tuple[str | None, ...]
OldRow = tuple[bool, Row]
"""`(True, row)`: only the key's columns are filled; `(False, row)`: the full old row."""


@dataclass(frozen=True, slots=True)
class Begin:
    start_lsn: Lsn
    commit_lsn: Lsn
    timestamp: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    start_lsn: Lsn
    commit_lsn: Lsn
    flags: int
    end_lsn: Lsn
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class Insert:
    start_lsn: Lsn
    commit_lsn: Lsn
    seq: int
    table_id: TableId
    table_row: Row
    unchanged: tuple[int, ...] = ()
    """As for an update: a row filter can turn an update into an insert."""


@dataclass(frozen=True, slots=True)
class Update:
    start_lsn: Lsn
    commit_lsn: Lsn
    seq: int
    table_id: TableId
    table_row: Row
    old_table_row: OldRow | None
    unchanged: tuple[int, ...] = ()
    """The places of the columns whose value PostgreSQL did not send: they keep what they were."""


@dataclass(frozen=True, slots=True)
class Delete:
    start_lsn: Lsn
    commit_lsn: Lsn
    seq: int
    table_id: TableId
    old_table_row: OldRow | None


@dataclass(frozen=True, slots=True)
class Truncate:
    start_lsn: Lsn
    commit_lsn: Lsn
    seq: int
    options: int
    rel_ids: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    start_lsn: Lsn
    commit_lsn: Lsn
    table_schema: TableSchema


@dataclass(frozen=True, slots=True)
class Message:
    start_lsn: Lsn
    commit_lsn: Lsn
    seq: int
    transactional: bool
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    start_lsn: Lsn
    kind: str


Event = Begin | Commit | Insert | Update | Delete | Truncate | Relation | Message | Unsupported

"""What the messages say, as values: descriptions of tables, snapshots, changes.

Positions are texts with all their digits, so that they compare as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from penstock.model.visibility import Visibility

ROW_OPERATIONS = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE"})
CLOCKS_DIFFER = timedelta(hours=1)
"""So much later than a snapshot by the source's clock, no transaction can be in it. Without that bound the
ids of transactions, of 32 bits in changes, would one day come round to those of the snapshot."""


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    name: str
    data_type: str
    key: bool = False
    position: int = 0


@dataclass(frozen=True)
class TableDescription:
    """A schema document: what a table looks like under one version."""

    token: str
    """What the table is called in subjects."""
    name: str
    """`schema.table`"""
    source: str
    relation_id: int
    version: int
    """Grows with every other look of a table under one name; under another name it counts anew."""
    timestamp: float
    primary_key: tuple[str, ...]
    columns: tuple[ColumnDescription, ...]
    document: Mapping[str, Any]
    """All of it, as it was published."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> TableDescription:
        columns = tuple(
            ColumnDescription(
                column["name"], column["data_type"], bool(column.get("key")), column.get("position") or 0
            )
            for column in document["columns"]
        )
        return cls(
            document["table"],
            document.get("schema") or document["table"],
            document["source"],
            document["relation_id"],
            document["version"],
            document.get("timestamp") or 0.0,
            tuple(document.get("primary_key") or ()),
            columns,
            document,
        )

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def row_key(self) -> tuple[str, ...]:
        """The columns by which changes name a row; none: by all of its values. Under identity full every
        column may be flagged: then the primary key is shorter, where there is one."""
        flagged = tuple(column.name for column in self.columns if column.key)
        if flagged and (len(flagged) < len(self.columns) or set(flagged) == set(self.primary_key)):
            return flagged
        return self.primary_key

    @property
    def relation(self) -> tuple[str, int]:
        """What it stays when it is renamed."""
        return self.source, self.relation_id


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """`init.meta`: a snapshot that is whole."""

    snapshot_id: str
    table: TableDescription
    lsn: str
    timestamp: float
    batch_count: int
    row_count: int
    visibility: Visibility

    @classmethod
    def of(cls, document: Mapping[str, Any], name: str) -> SnapshotInfo:
        """Read it; `name` is the table's, should the document not say."""
        visibility = Visibility(document["xmin"], document["xmax"], tuple(document["xip"]))
        fields = ("table", "source", "relation_id", "version", "timestamp", "primary_key", "columns")
        described = {"schema": document.get("schema") or name, **{key: document[key] for key in fields}}
        return cls(
            document["snapshot_id"],
            TableDescription.of(described),
            document["lsn"],
            document["timestamp"],
            document["batch_count"],
            document["row_count"],
            visibility,
        )

    @property
    def visible_until(self) -> str:
        """The time by which no further transaction can be in the snapshot, as changes have times."""
        until = datetime.fromtimestamp(self.timestamp, UTC) + CLOCKS_DIFFER
        return until.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a table, and where it stands in the stream."""

    sequence: int
    operation: str
    """INSERT, UPDATE, DELETE, TRUNCATE"""
    table: str
    source: str
    relation_id: int
    data: dict[str, Any]
    old: dict[str, Any]
    unchanged: tuple[str, ...]
    commit_lsn: str
    seq: int
    lsn: str
    xid: int
    committed_at: str

    @classmethod
    def of(cls, sequence: int, message: Mapping[str, Any]) -> RowChange:
        return cls(
            sequence,
            message["operation"],
            message["table"],
            message["source"],
            message["relation_id"],
            message.get("data") or {},
            message.get("old") or {},
            tuple(message.get("unchanged") or ()),
            message["commit_lsn"],
            message["seq"],
            message["lsn"],
            message["xid"],
            message["committed_at"],
        )

    @property
    def place(self) -> tuple[str, int]:
        """Grows from change to change of one table; one that is not greater is a repetition."""
        return self.commit_lsn, self.seq

    @property
    def relation(self) -> tuple[str, int]:
        return self.source, self.relation_id


@dataclass(frozen=True, slots=True)
class TableReset:
    """Changes may be missing before this: a snapshot is void unless it was asked for later, whatever their
    positions. It says what the table is called now."""

    sequence: int
    table: str
    name: str | None
    """`schema.table`"""
    source: str
    relation_id: int
    lsn: str
    reason: str

    @property
    def relation(self) -> tuple[str, int]:
        return self.source, self.relation_id


@dataclass(frozen=True, slots=True)
class TableRedescribed:
    """The table has another version from here on."""

    sequence: int
    table: TableDescription
    lsn: str

    @property
    def relation(self) -> tuple[str, int]:
        return self.table.relation


@dataclass(frozen=True, slots=True)
class MessageLogged:
    """A logical message of PostgreSQL."""

    sequence: int
    content: Mapping[str, Any]


TableEvent = RowChange | TableReset | TableRedescribed
FeedEvent = TableEvent | MessageLogged


def event(sequence: int, message: Mapping[str, Any]) -> FeedEvent | None:
    """Return what a message of the stream says; None: nothing for consumers."""
    operation = message.get("operation")
    if operation in ROW_OPERATIONS:
        return RowChange.of(sequence, message)
    if operation == "SCHEMA":
        return TableRedescribed(sequence, TableDescription.of(message), message["lsn"])
    if operation == "RESET":
        named = message["table"], message.get("schema")
        where = message["source"], message["relation_id"], message["lsn"]
        return TableReset(sequence, *named, *where, message.get("reason") or "")
    return MessageLogged(sequence, message) if operation == "MESSAGE" else None


class SeenBy:
    """Says whether a change is in a snapshot. Changes of one transaction come together: it is asked once."""

    def __init__(self, visibility: Visibility, until: str) -> None:
        self._visibility = visibility
        self._until = until
        self._last: tuple[int, bool] | None = None
        self.is_over = False
        """Whether a change was so late that neither it nor any behind it is in the snapshot."""

    def __call__(self, change: RowChange) -> bool:
        self.is_over = self.is_over or change.committed_at > self._until
        if self.is_over:
            return False
        xid = change.xid
        if self._last is None or self._last[0] != xid:
            import numpy as np

            self._last = xid, bool(self._visibility.sees(np.array([xid], np.int64))[0])
        return self._last[1]

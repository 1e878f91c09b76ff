"""For those who read what the destination `nats` publishes: a feed of tables and changes, and a mirror.

Needs neither Spark nor a configuration file. docs/nats-consumers.md is the guide.
"""

from penstock.consumer.access import ConsumerAccess, TlsFiles
from penstock.consumer.documents import (
    ColumnDescription,
    FeedEvent,
    MessageLogged,
    RowChange,
    SnapshotInfo,
    TableDescription,
    TableRedescribed,
    TableReset,
)
from penstock.consumer.feed import Feed, FeedBroken, SnapshotRows
from penstock.consumer.mirror import Mirror
from penstock.consumer.snapshots import SnapshotReader

__all__ = [
    "ColumnDescription",
    "ConsumerAccess",
    "Feed",
    "FeedBroken",
    "FeedEvent",
    "MessageLogged",
    "Mirror",
    "RowChange",
    "SnapshotInfo",
    "SnapshotReader",
    "SnapshotRows",
    "TableDescription",
    "TableRedescribed",
    "TableReset",
    "TlsFiles",
]

"""What everything speaks: positions, schemas, events, errors."""

from penstock.model.lsn import ZERO, Lsn, Reached
from penstock.model.schema import (
    NO_TABLE,
    Column,
    ColumnType,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    TypeKind,
)

__all__ = [
    "NO_TABLE",
    "ZERO",
    "Column",
    "ColumnType",
    "Lsn",
    "Reached",
    "ReplicaIdentity",
    "TableId",
    "TableName",
    "TableSchema",
    "TypeKind",
]

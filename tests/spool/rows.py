"""Hand-made rows of the spool's schema, for tests that need no server."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from penstock.model import Lsn
from penstock.spool.identity import Identity
from penstock.spool.segment import SCHEMA, BeforeKind, Op

IDENTITY = Identity("7000000000000000001", "shop", "penstock_test")
START = Lsn(0x1000)
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def transaction(commit: int, *tables: int, text: str = "x") -> pa.RecordBatch:
    """One insert into each of the tables named, committed at `commit`."""
    rows = [
        {
            "table_id": table,
            "schema_version": 1,
            "op": Op.INSERT,
            "commit_lsn": commit,
            "lsn": commit - 1,
            "seq": seq,
            "xid": commit,
            "committed_at": WHEN,
            "before_kind": BeforeKind.NONE,
            "before": None,
            "after": [str(commit), str(seq), text, None],
            "unchanged": None,
        }
        for seq, table in enumerate(tables)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)

"""The spool as plain objects, in the order of the stream: for people, examples and checks.

Within a segment rows are grouped by table, so they are put back in order here. Bulk readers (Spark) take
the parts as Arrow instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from penstock.model import Lsn, TableId, TableSchema
from penstock.spool import segment
from penstock.spool.manifest import Manifest, SegmentEntry
from penstock.spool.segment import BeforeKind, Op

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Change:
    table: TableSchema | None
    """None for a logical message."""
    op: Op
    commit_lsn: Lsn
    lsn: Lsn
    seq: int
    xid: int
    committed_at: datetime
    before_kind: BeforeKind
    before: Values | None
    after: Values | None
    unchanged: tuple[int, ...]

    def before_map(self) -> dict[str, str | None] | None:
        """Return the old row by column name: all of it, or the columns of its key."""
        if self.table is None or self.before is None:
            return None
        named = zip(self.table.columns, self.before, strict=True)
        full = self.before_kind is BeforeKind.FULL
        return {column.name: value for column, value in named if full or column.key}

    def after_map(self) -> dict[str, str | None] | None:
        """Return the new row by column name, without the columns that PostgreSQL did not send."""
        if self.table is None or self.after is None or self.op is Op.TRUNCATE:
            return None
        named = enumerate(zip(self.table.column_names, self.after, strict=True))
        return {name: value for place, (name, value) in named if place not in self.unchanged}


def changes(manifest: Manifest, start: Lsn, end: Lsn) -> Iterator[Change]:
    """Yield every change of `[start, end)`, ordered by `(commit_lsn, seq)`."""
    schemas = manifest.schemas()
    for entry in manifest.entries(start, end):
        yield from _of_segment(manifest.path.parent, entry, schemas)


def _of_segment(
    spool: Path, entry: SegmentEntry, schemas: Mapping[tuple[TableId, int], TableSchema]
) -> Iterator[Change]:
    rows = pa.Table.from_batches(segment.read_batches(spool / entry.segment.file, 0), segment.SCHEMA)
    for row in rows.sort_by([("commit_lsn", "ascending"), ("seq", "ascending")]).to_pylist():
        yield Change(
            table=schemas.get((row["table_id"], row["schema_version"])),
            op=Op(row["op"]),
            commit_lsn=Lsn(row["commit_lsn"]),
            lsn=Lsn(row["lsn"]),
            seq=row["seq"],
            xid=row["xid"],
            committed_at=row["committed_at"],
            before_kind=BeforeKind(row["before_kind"]),
            before=None if row["before"] is None else tuple(row["before"]),
            after=None if row["after"] is None else tuple(row["after"]),
            unchanged=tuple(row["unchanged"] or ()),
        )

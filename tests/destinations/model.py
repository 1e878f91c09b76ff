"""What a destination should hold: tables as dictionaries, changed by random transactions that are spooled.

Two tables: one with odd names, a composite key and a column whose value is often not sent; one without a key,
whose rows are there several times, of types that have no equality.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime
from typing import Any

from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.spool.segment import BeforeKind
from tests.destinations.given import Spool, committed_at

INT, TEXT, JSON, POINT = (
    ColumnType(23, "int4"),
    ColumnType(25, "text"),
    ColumnType(114, "json"),
    ColumnType(600, "point"),
)

KEYED = TableSchema(
    TableId(11),
    1,
    TableName("public", 'Sel"ect ü'),
    ReplicaIdentity.DEFAULT,
    (
        Column("user", INT, True),
        Column('va"l%s', TEXT),
        Column("Ünï cödé", TEXT, True),
        Column("c0", TEXT),
    ),
)
WHOLE = TableSchema(
    TableId(12),
    1,
    TableName("public", "bag"),
    ReplicaIdentity.FULL,
    (Column("_count", JSON, True), Column("at", POINT, True), Column("note", TEXT, True)),
)

Key = tuple[str, str]
Row = tuple[str | None, ...]
OPEN = datetime.fromisoformat("9999-01-01T00:00:00+00:00")


class Model:
    """The tables as they are at the source, and what became of them."""

    def __init__(
        self, spool: Spool, seed: int, keyed: TableSchema = KEYED, whole: TableSchema = WHOLE
    ) -> None:
        self.spool = spool
        self._keyed, self._whole = keyed, whole
        self.chance = random.Random(seed)
        self.rows: dict[Key, Row] = {}
        self.ever: dict[Key, Row] = {}
        """What `append` holds."""
        self.open: dict[Key, tuple[datetime, Row]] = {}
        self.ended: list[tuple[Any, ...]] = []
        self.bag: Counter[Row] = Counter()
        self._touched: set[Key] = set()
        self._emptied = False

    def transaction(self, changes: int) -> Lsn:
        before = set(self.open)
        now = committed_at(Lsn(self.spool._at))
        for _ in range(changes):
            self.chance.choice(
                [self._insert, self._update, self._update, self._delete, self._swap, self._bag]
            )()
            if self.chance.random() < 0.01:
                self._truncate()
        if self.chance.random() < 0.05:
            self._truncate()
            self._insert()
        self._bag()
        touched = before | self._touched if self._emptied else self._touched
        for key in touched:
            if key in self.open:
                start, row = self.open.pop(key)
                self.ended.append((*row, start, now, self._emptied or key not in self.rows))
            if key in self.rows:
                self.open[key] = (now, self.rows[key])
        self._touched, self._emptied = set(), False
        return self.spool.commit()

    def history(self) -> list[tuple[Any, ...]]:
        lasting = [(*row, start, OPEN, False) for start, row in self.open.values()]
        return sorted(self.ended + lasting, key=repr)

    def _text(self) -> str | None:
        return self.chance.choice(["", None, "a\tb", "\\.", "line\nline", "\\N", "plain", "ü" * 10, "'\"{}"])

    def _key(self) -> Key:
        return str(self.chance.randrange(4)), self.chance.choice(["", "x", "Y\\", "\t"])

    def _put(self, key: Key, row: Row) -> None:
        self.rows[key] = self.ever[key] = row
        self._touched.add(key)

    def _insert(self) -> None:
        key = self._key()
        if key not in self.rows:
            row = (key[0], self._text(), key[1], self._text())
            self.spool.insert(self._keyed, row)
            self._put(key, row)

    def _update(self) -> None:
        if self.rows:
            key = self.chance.choice(sorted(self.rows))
            free = [new for new in [self._key()] if new not in self.rows]
            self._change(key, free[0] if free else key)

    def _swap(self) -> None:
        """Two rows exchange their keys."""
        if len(self.rows) > 1:
            one, other = self.chance.sample(sorted(self.rows), 2)
            aside = ("99", "aside")
            self._change(one, aside)
            self._change(other, one)
            self._change(aside, other)

    def _change(self, key: Key, new: Key) -> None:
        old = self.rows.pop(key)
        self._touched.add(key)
        kept = self.chance.random() < 0.5
        row = (new[0], self._text(), new[1], old[3] if kept else self._text())
        sent = (*row[:3], None) if kept else row
        moved: dict[str, Any] = {"before": [key[0], None, key[1], None], "before_kind": BeforeKind.KEY}
        self.spool.update(self._keyed, sent, unchanged=[3] if kept else None, **(moved if new != key else {}))
        self._put(new, row)

    def _delete(self) -> None:
        if self.rows:
            key = self.chance.choice(sorted(self.rows))
            self.spool.delete(self._keyed, (key[0], None, key[1], None))
            del self.rows[key]
            self._touched.add(key)

    def _truncate(self) -> None:
        self.spool.truncate(self._keyed, "cascade")
        self.rows.clear()
        self._touched = set()
        self._emptied = True
        if self.chance.random() < 0.5:
            self.spool.truncate(self._whole)
            self.bag.clear()

    def _bag(self) -> None:
        row: Row = (
            json.dumps({"a": self.chance.randrange(2)}),
            self.chance.choice(["(1,2)", None]),
            self._text(),
        )
        if self.bag and self.chance.random() < 0.3:
            row = self.chance.choice(sorted(self.bag.elements(), key=repr))
            self.spool.delete(self._whole, row, BeforeKind.FULL)
            self.bag[row] -= 1
        elif self.bag and self.chance.random() < 0.5:
            old = self.chance.choice(sorted(self.bag.elements(), key=repr))
            self.spool.update(self._whole, row, before=list(old), before_kind=BeforeKind.FULL)
            self.bag[old] -= 1
            self.bag[row] += 1
        else:
            self.spool.insert(self._whole, row)
            self.bag[row] += 1
        self.bag = +self.bag

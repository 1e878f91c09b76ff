"""A table that changes at random, and what the spool has of it: what net changes are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.model import ReplicaIdentity, TableSchema
from penstock.spool.segment import SCHEMA, BeforeKind, Op
from tests.changes.made import WHEN, table

Key = tuple[str | None, ...]
Values = tuple[str | None, ...]

PLACES = (0, 2)
"""Of the key's columns: not side by side."""
OTHERS = (1, 3)
KEY = ("id", "area")
BY_KEY = table(1, "public.things", {"id": "int4", "a": "text", "area": "text", "b": "text"}, key=KEY)
FULL = replace(
    BY_KEY,
    identity=ReplicaIdentity.FULL,
    columns=tuple(replace(column, key=True) for column in BY_KEY.columns),
)
KEYS: tuple[Key, ...] = (("1", "x"), ("1", "y"), ("2", "x"), ("1", None), (None, "1"), ("", ""))


@dataclass
class Thing:
    """A row, with its past since the changes began."""

    values: dict[int, str | None]
    origin: Key | None
    """The key it had before; None: it was not there."""
    sent: set[int] = field(default_factory=set)
    """The columns whose value is known from the changes."""
    touched: int = -1


@dataclass(frozen=True)
class Version:
    """What a key held at the end of transactions, from one until before another."""

    row: Values
    at: datetime | None
    """None: from before the changes."""
    until: datetime | None = None
    deleted: bool = False


@dataclass
class Changing:
    schema: TableSchema
    things: dict[Key, Thing]
    changes: list[dict[str, Any]] = field(default_factory=list)
    gone: set[Key] = field(default_factory=set)
    """Keys of the rows that were there and no longer are."""
    truncated: bool = False
    transaction: int = 0
    touched: dict[Key, None] = field(default_factory=dict)
    """Keys that this transaction has touched since its last truncate."""
    emptied: bool = False
    """Whether this transaction has truncated."""
    past: list[Version] = field(default_factory=list)
    """The versions that have ended."""
    open: dict[Key, Version] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open = {key: Version(self.row(key), None) for key in self.things}

    @property
    def at(self) -> datetime:
        return WHEN + timedelta(seconds=self.transaction)

    def row(self, key: Key) -> Values:
        values = dict(zip(PLACES, key, strict=True)) | self.things[key].values
        return tuple(values[place] for place in range(4))

    def state(self) -> dict[Key, Values]:
        return {key: self.row(key) for key in self.things}

    def insert(self, key: Key, values: Sequence[str | None]) -> None:
        if key in self.things:
            return
        self.things[key] = Thing(dict(zip(OTHERS, values, strict=True)), None, set(OTHERS), len(self.changes))
        self.touched[key] = None
        self._add(Op.INSERT, after=self.row(key))

    def update(self, key: Key, to: Key, values: Sequence[str | None], unchanged: set[int]) -> None:
        if key not in self.things or (to != key and to in self.things):
            return
        before = self.row(key)
        thing = self.things.pop(key)
        new = {place: value for place, value in zip(OTHERS, values, strict=True) if place not in unchanged}
        thing.values |= new
        thing.touched = len(self.changes)
        self.things[to] = thing
        self.touched |= {key: None, to: None}
        after = [None if place in unchanged else value for place, value in enumerate(self.row(to))]
        full = self.schema.identity is ReplicaIdentity.FULL
        thing.sent |= set(OTHERS) if full else set(new)
        given: dict[str, Any] = {"after": after, "unchanged": sorted(unchanged) or None}
        if full:
            given |= {"before_kind": BeforeKind.FULL, "before": before}
        elif key != to:
            given |= {"before_kind": BeforeKind.KEY, "before": self._only_key(before)}
        self._add(Op.UPDATE, **given)

    def delete(self, key: Key) -> None:
        if key not in self.things:
            return
        before = self.row(key)
        thing = self.things.pop(key)
        self.touched[key] = None
        if thing.origin is not None:
            self.gone.add(thing.origin)
        full = self.schema.identity is ReplicaIdentity.FULL
        kind = BeforeKind.FULL if full else BeforeKind.KEY
        self._add(Op.DELETE, before_kind=kind, before=before if full else self._only_key(before))

    def truncate(self) -> None:
        self.things.clear()
        self.gone.clear()
        self.truncated = self.emptied = True
        self.touched.clear()
        self._add(Op.TRUNCATE, after=["cascade"])

    def commit(self) -> None:
        for key in list(self.open if self.emptied else self.touched):
            if key in self.open:
                deleted = self.emptied or key not in self.things
                self.past.append(replace(self.open.pop(key), until=self.at, deleted=deleted))
        for key in self.touched:
            if key in self.things:
                self.open[key] = Version(self.row(key), self.at)
        self.touched.clear()
        self.emptied = False
        self.transaction += 1

    def _only_key(self, row: Values) -> list[str | None]:
        return [value if place in PLACES else None for place, value in enumerate(row)]

    def _add(self, op: Op, **given: Any) -> None:
        self.changes.append(
            {
                "table_id": self.schema.id,
                "schema_version": self.schema.version,
                "op": op,
                "commit_lsn": 1000 + self.transaction,
                "lsn": len(self.changes),
                "seq": len(self.changes),
                "xid": self.transaction,
                "committed_at": self.at,
                "before_kind": BeforeKind.NONE,
                "before": None,
                "after": None,
                "unchanged": None,
            }
            | given
        )

    def batches(self, cuts: Sequence[int] = ()) -> list[pa.RecordBatch]:
        """The changes, cut before these; slices of one batch, as a reader of the spool may have them."""
        whole = pa.RecordBatch.from_pylist(self.changes, SCHEMA)
        bounds = [0, *sorted({cut % (len(whole) + 1) for cut in cuts}), len(whole)]
        return [whole.slice(a, b - a) for a, b in pairwise(bounds)]


def key_of(row: Values) -> Key:
    return tuple(row[place] for place in PLACES)


_keys = st.sampled_from(KEYS)
_value = st.sampled_from(["", "a", "b", "\\N", None])
_values = st.tuples(_value, _value)
_unchanged = st.sets(st.sampled_from(OTHERS))
_steps = st.one_of(
    st.tuples(st.just("insert"), _keys, _values),
    st.tuples(st.just("update"), _keys, st.none(), _values, _unchanged),
    st.tuples(st.just("update"), _keys, _keys, _values, _unchanged),
    st.tuples(st.just("delete"), _keys),
    st.tuples(st.just("commit")),
)
_maybe_truncate = st.integers(0, 19).flatmap(lambda n: st.tuples(st.just("truncate")) if n == 0 else _steps)

starts = st.dictionaries(_keys, _values, max_size=5)
steps = st.lists(_maybe_truncate, max_size=20) | st.lists(_maybe_truncate, min_size=15, max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=3)


def changing(schema: TableSchema, start: dict[Key, Values]) -> Changing:
    """A table with these rows, none of them changed yet."""
    things = {key: Thing(dict(zip(OTHERS, values, strict=True)), key) for key, values in start.items()}
    return Changing(schema, things)


def play(table: Changing, step: tuple[Any, ...]) -> None:
    """One step of a random history; one that cannot be is passed over."""
    match step:
        case "insert", key, values:
            table.insert(key, values)
        case "update", key, to, values, unchanged:
            table.update(key, key if to is None else to, values, unchanged)
        case "delete", key:
            table.delete(key)
        case ("truncate",):
            table.truncate()
        case ("commit",):
            table.commit()

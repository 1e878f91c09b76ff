"""A model of one table on its way: at the source by column numbers, at the destination by names.

`Source` does to rows and catalog what PostgreSQL does. `Copy` is the destination with the pipeline's part of
it: batches, looks at the catalog, copies, in the order in which a test has them happen. Positions are
numbers that only grow, one for each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any

from penstock.destinations.schema_change import Add, Drop, Rename, SchemaChange
from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.pipeline import schema_evolution
from penstock.pipeline.schema_evolution import CopyAnew
from penstock.pipeline.table_facts import Facts

INT, VARCHAR, TEXT = ColumnType(23, "int4"), ColumnType(1043, "varchar"), ColumnType(25, "text")
OID, REGCLASS = ColumnType(26, "oid"), ColumnType(2205, "regclass")
RETYPED = {VARCHAR: TEXT, TEXT: VARCHAR, OID: REGCLASS, REGCLASS: OID}
REWRITES = {TEXT}
"""Types that cannot be changed without writing every row anew. Between the last two nothing is written, and
yet all values print otherwise."""
KEY = 1
"""The number of the column that rows are found by."""
NAMES = ("a", "b", "c", "d")

Values = dict[str, str | None]


def printed(value: str | None, type: ColumnType) -> str | None:
    return f"class {value}" if value is not None and type == REGCLASS else value


def is_printed(text: str | None, type: ColumnType) -> bool:
    """Whether a destination would take the text for a value of the type."""
    return text is None or text.startswith("class ") == (type == REGCLASS)


@dataclass
class Attribute:
    name: str
    type: ColumnType
    mark: int
    missing: str | None = None


@dataclass(frozen=True)
class Change:
    commit: int
    schema: TableSchema
    row: tuple[str | None, ...]


@dataclass
class Source:
    types: tuple[ColumnType, ColumnType] = (TEXT, VARCHAR)
    """Of the columns `a` and `b`, and of others that are added."""
    attributes: dict[int, Attribute] = field(default_factory=dict)
    rows: dict[str, dict[int, str | None]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    highest: int = 0
    file: int = 1
    now: int = 1
    values: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        for name, type in (("id", INT), *zip("ab", self.types, strict=True)):
            self._create(name, type)
        for key in ("1", "2"):
            self.write(key)
        self.commit()

    def commit(self) -> None:
        self.now += 1

    def schema(self) -> TableSchema:
        columns = (
            Column(attribute.name, attribute.type, number == KEY)
            for number, attribute in self.attributes.items()
        )
        name = TableName("public", "t")
        return TableSchema(TableId(1), 0, name, ReplicaIdentity.DEFAULT, tuple(columns))

    def facts(self, begun: int) -> Facts:
        """As of now; `lsn` is for whoever takes longer to set later."""
        return Facts(
            schema=self.schema(),
            primary_key=(self.attributes[KEY].name,),
            numbers={attribute.name: number for number, attribute in self.attributes.items()},
            highest=self.highest,
            marks={number: str(attribute.mark) for number, attribute in self.attributes.items()},
            missing={
                a.name: [text]
                for a in self.attributes.values()
                if (text := printed(a.missing, a.type)) is not None
            },
            files={"1": self.file},
            row_filter=None,
            bytes=0,
            begun=Lsn(begun),
            lsn=Lsn(self.now),
            member=frozenset({"table 1"}),
        )

    def contents(self) -> list[Values]:
        return [
            dict(zip(self.schema().column_names, self._printed(row), strict=True))
            for _, row in sorted(self.rows.items())
        ]

    # What can be done to it. A column is one of those that are no key, by its place among them.

    def write(self, key: str) -> None:
        """Insert a row, or update all of it."""
        row: dict[int, str | None] = {number: f"{next(self.values)}" for number in self.attributes}
        self.rows[key] = row | {KEY: key}
        self.changes.append(Change(self.now, self.schema(), self._printed(self.rows[key])))

    def add(self, place: int, default: bool) -> None:
        free = [name for name in NAMES if name not in self._names()]
        if free:
            self._create(free[place % len(free)], self.types[place % 2], self._default(default))

    def drop(self, place: int) -> None:
        if number := self._pick(place):
            del self.attributes[number]
            for row in self.rows.values():
                del row[number]

    def rename(self, place: int, to: int) -> None:
        free = [name for name in NAMES if name not in self._names()]
        if free and (number := self._pick(place)):
            self._touch(number, name=free[to % len(free)])

    def rename_key(self) -> None:
        self._touch(KEY, name="key" if self.attributes[KEY].name == "id" else "id")

    def swap(self, place: int, other: int) -> None:
        one, two = self._pick(place), self._pick(other)
        if one and two and one != two:
            names = self.attributes[one].name, self.attributes[two].name
            self._touch(one, name=names[1])
            self._touch(two, name=names[0])

    def move_on(self, place: int) -> None:
        """Drop a column and give its name to the next one."""
        number, after = self._pick(place), self._pick(place + 1)
        if number and after and number != after:
            name = self.attributes[number].name
            self.drop(place)
            self._touch(after, name=name)

    def roll(self) -> None:
        """Drop the first column, give each other one the name before its own, and add one under the last."""
        numbers = [number for number in self.attributes if number != KEY]
        names = [self.attributes[number].name for number in numbers]
        if numbers:
            last = self.attributes[numbers[-1]].type
            self.drop(0)
            for number, name in zip(numbers[1:], names, strict=False):
                self._touch(number, name=name)
            self._create(names[-1], last)

    def make_again(self, place: int, default: bool) -> None:
        """Drop a column and add one of its name."""
        if number := self._pick(place):
            before = self.attributes[number]
            self.drop(place)
            self._create(before.name, before.type, self._default(default))

    def retype(self, place: int) -> None:
        """Rows stay as they are where that can be."""
        if number := self._pick(place):
            before = self.attributes[number].type
            self._touch(number, type=RETYPED[before])
            if before in REWRITES:
                self._rewrite()

    def compute(self, place: int) -> None:
        """`alter column … type … using …`, of the same type."""
        if number := self._pick(place):
            self._touch(number)
            for row in self.rows.values():
                row[number] = f"{row[number]}!"
            self._rewrite()

    def vacuum(self) -> None:
        self._rewrite()

    def set_default(self, place: int) -> None:
        if number := self._pick(place):
            self._touch(number)

    def _printed(self, row: dict[int, str | None]) -> tuple[str | None, ...]:
        return tuple(printed(row[number], attribute.type) for number, attribute in self.attributes.items())

    def _default(self, wanted: bool) -> str | None:
        return f"default {next(self.values)}" if wanted else None

    def _create(self, name: str, type: ColumnType, missing: str | None = None) -> None:
        self.highest += 1
        self.attributes[self.highest] = Attribute(name, type, self.now, missing)
        for row in self.rows.values():
            row[self.highest] = missing

    def _touch(self, number: int, **how: Any) -> None:
        self.attributes[number] = replace(self.attributes[number], mark=self.now, **how)

    def _rewrite(self) -> None:
        self.file += 1
        for number, attribute in self.attributes.items():
            if attribute.missing is not None:
                self._touch(number, missing=None)

    def _pick(self, place: int) -> int | None:
        numbers = [number for number in self.attributes if number != KEY]
        return numbers[place % len(numbers)] if numbers else None

    def _names(self) -> set[str]:
        return {attribute.name for attribute in self.attributes.values()}


@dataclass
class Copy:
    """The destination, and where it stands."""

    source: Source
    seen: Facts = field(init=False)
    """The last look at the catalog."""
    copies: list[str] = field(default_factory=list)
    """Why the table was copied, each time."""

    def __post_init__(self) -> None:
        self.look()
        self.copy("first")

    def look(self, meanwhile: Callable[[], object] = lambda: None, *, late: bool = False) -> None:
        """Read the catalog; something may happen before it is said where that was, or (`late`) before it is
        read."""
        begun = self.source.now
        if late:
            meanwhile()
        facts = self.source.facts(begun)
        if not late:
            meanwhile()
        before = getattr(self, "seen", None)
        same = before is not None and replace(before, begun=facts.begun, lsn=facts.lsn) == facts
        self.seen = replace(facts, lsn=before.lsn if before and same else Lsn(self.source.now))

    def copy(self, why: str) -> None:
        """Under a snapshot of now, with a look of its own: the stream does not get to know of it."""
        self.copies.append(why)
        facts = self.source.facts(self.source.now)
        self.schema, self.known = facts.schema, facts.detail()
        self._note()
        self.rows = {row[self.key] or "": row for row in self.source.contents()}
        self.copied_at, self.position = self.source.now, min(getattr(self, "position", 1), self.source.now)

    @property
    def key(self) -> str:
        return self.schema.columns[0].name

    def batch(self, transactions: int | None = None) -> None:
        """The next changes, of so many transactions or of all."""
        end = self.source.now if transactions is None else min(self.position + transactions, self.source.now)
        begun = self.position
        self.position = end
        self._note()
        chosen = [c for c in self.source.changes if begun <= c.commit < end and c.commit >= self.copied_at]
        for schema, changes in groupby(chosen, key=lambda change: change.schema):
            if not schema_evolution.same(self.schema, schema):
                self.look()
                evolved = schema_evolution.follow(self.schema, schema, self.known, self.seen)
                if isinstance(evolved, CopyAnew):
                    self.copy(evolved.why)
                    return
                self._follow(schema, evolved)
            for change in changes:
                assert change.row[0] is not None
                self.rows[change.row[0]] = dict(zip(schema.column_names, change.row, strict=True))

    def settle(self) -> None:
        """Follow what the catalog said, once the stream is past it."""
        self._note()
        pending = any(change.commit >= self.position for change in self.source.changes)
        reached = self.position if pending else self.source.now
        if not schema_evolution.is_due(self.seen, self.known, Lsn(reached)):
            return
        if schema_evolution.is_outrun(self.seen, Lsn(self.position)):
            self.look()
            self.settle()
            return
        evolved = schema_evolution.look(self.schema, self.known, self.seen)
        if isinstance(evolved, CopyAnew):
            self.copy(evolved.why)
        elif evolved is not None:
            self._follow(self.seen.schema, evolved)

    def restart(self) -> None:
        """After a crash: the destination has what was done last, and nobody noted it."""
        self.look()
        schema = self.schema
        self.schema, self.known = self.noted
        if schema_evolution.same(schema, self.schema):
            return
        evolved = schema_evolution.follow(self.schema, schema, self.known, self.seen)
        if isinstance(evolved, CopyAnew):
            self.copy(evolved.why)
        else:
            self.schema, self.known = schema, evolved.detail
            self._note()

    def _note(self) -> None:
        self.noted = self.schema, self.known

    def _follow(self, schema: TableSchema, evolved: schema_evolution.Evolved) -> None:
        for row in self.rows.values():
            carry_out(evolved.change, row)
            assert row.keys() == set(schema.column_names)
            assert all(is_printed(row[column.name], column.type) for column in schema.columns)
        self.schema, self.known = schema, evolved.detail


def carry_out(change: SchemaChange, row: Values) -> None:
    for step in change.steps(row):
        match step:
            case Drop(name):
                del row[name]
            case Rename(old, new):
                assert new not in row
                row[new] = row.pop(old)
            case Add(column, value):
                assert column.name not in row
                row[column.name] = value

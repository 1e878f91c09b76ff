"""How a table came from one schema to another, so that a destination can follow.

The stream describes a row's columns by name and type, in the order of their numbers (`attnum`), and names
come back: a column may get the name of one that was dropped. So columns are told apart by number alone. Which
numbers the columns of a row had is worked out from what was certain last (`Facts.detail`) and from what the
catalog says now, which may be newer than the row:

- numbers are given in order and never again; a column that is there before and after was there in between;
- a column whose row in the catalog is the same one as before (its mark) has had its name all the while;
- so a row may have been written under some sets of numbers, and not under others (`column_numbers.py`).

If there is exactly one such set for the row, and one for all rows that came since, the change is followed by
number. Where there are several, or where the rows themselves were rewritten, there is no answer: the table is
copied anew, which is always right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.destinations.schema_change import SchemaChange
from penstock.model import ZERO, ColumnType, Lsn, ReplicaIdentity, TableSchema
from penstock.pipeline.column_numbers import highest, possible
from penstock.pipeline.table_facts import Facts
from penstock.pipeline.unseen_changes import unseen


@dataclass(frozen=True, slots=True)
class CopyAnew:
    """The change cannot be followed."""

    why: str


@dataclass(frozen=True, slots=True)
class Evolved:
    """What a destination has to do, and what is certain of the table once it has."""

    change: SchemaChange
    detail: dict[str, Any]


UNCERTAIN = CopyAnew("which of its columns are which can no longer be told")


def same(one: TableSchema, other: TableSchema) -> bool:
    """Whether two descriptions say the same, whatever their versions, and whatever types are called: the
    stream's rows have the name that a type had when it was seen first, the catalog the one of now."""
    if (one.name, one.identity) != (other.name, other.identity):
        return False
    return one.columns == other.columns or (one.key, one.layout) == (other.key, other.layout)


def is_newer(now: Facts, detail: Mapping[str, Any]) -> bool:
    """Whether the catalog was read later than all that is known of the table: a copy has looked for itself,
    and an older look says nothing about it."""
    return now.begun > (Lsn.parse(detail["lsn"]) if "lsn" in detail else ZERO)


def is_due(now: Facts, detail: Mapping[str, Any], reached: Lsn) -> bool:
    """Whether what the catalog says is to be compared with what is known: all changes from before it said so
    have been applied, and nothing that is known is newer."""
    return now.lsn <= reached and is_newer(now, detail)


def is_outrun(now: Facts, applied: Lsn) -> bool:
    """Whether changes were applied that came after the catalog was read: they may look as the old ones did
    and belong to a schema that is newer still. The catalog has to be read again."""
    return now.begun < applied


def follow(
    old: TableSchema, new: TableSchema, detail: Mapping[str, Any], now: Facts | None
) -> Evolved | CopyAnew:
    """Return the step from `old`, of which `detail` is certain, to `new`, of a row from before `now` was
    read."""
    if old.layout == new.layout:
        return Evolved(SchemaChange(), dict(detail))
    if now is None:
        return CopyAnew("its columns changed and it is no longer published as it was")
    to = possible(new.column_names, detail, now)
    if to is None or not _is_settled(old, detail, now):
        return UNCERTAIN
    change = _change(old, new, detail, to, now)
    if isinstance(change, CopyAnew):
        return change
    names = dict(zip(to, new.column_names, strict=True))
    primary_key = [names.get(detail["numbers"].get(name, 0)) for name in detail["primary_key"]]
    return Evolved(
        change,
        {
            **detail,
            "numbers": {name: number for number, name in names.items()},
            "highest": max([highest(detail), *to]),  # not the catalog's: the next row may have later ones
            "files": dict(now.files),
            "primary_key": primary_key if None not in primary_key else [],
        },
    )


def look(old: TableSchema, detail: Mapping[str, Any], now: Facts) -> Evolved | CopyAnew | None:
    """Return the step from `old` to the catalog's schema, when all changes before it were applied, none
    after. None where nothing is to be done and nothing to be remembered."""
    if why := unseen(detail, now):
        return CopyAnew(why)
    certain = now.detail()
    if same(old, now.schema) and all(detail.get(key) == certain[key] for key in certain if key != "lsn"):
        return None
    if not _is_settled(old, detail, now):
        return UNCERTAIN
    to = [now.numbers[name] for name in now.schema.column_names]
    change = _change(old, now.schema, detail, to, now)
    if isinstance(change, CopyAnew):
        return change
    if _loses_its_key(old, detail, now):
        return CopyAnew("its primary key changed")
    return Evolved(change, {**detail, **certain})


def _is_settled(old: TableSchema, detail: Mapping[str, Any], now: Facts) -> bool:
    """Whether all rows that look as the old ones did had the columns that are known, and no others."""
    numbers = [detail["numbers"].get(name) for name in old.column_names]
    return possible(old.column_names, detail, now) == numbers


def _change(
    old: TableSchema, new: TableSchema, detail: Mapping[str, Any], to: Sequence[int], now: Facts
) -> SchemaChange | CopyAnew:
    """Return the step from the old columns to the new ones, whose numbers are `to`."""
    was = {detail["numbers"][column.name]: column for column in old.columns}
    names = {number: name for name, number in now.numbers.items()}
    renamed, added, retyped = [], [], []
    for column, number in zip(new.columns, to, strict=True):
        before = was.get(number)
        if before is None:
            if number not in names or _type(now.schema, names[number]) != column.type.unnamed:
                return CopyAnew("its columns changed again before the change could be followed")
            texts = now.missing.get(names[number], [])
            if len(texts) > 1:
                return CopyAnew(f"its partitions differ in what rows have in {column.name}")
            added.append((column, next(iter(texts), None)))
            continue
        if before.name != column.name:
            renamed.append((before.name, column.name))
        if column.type.unnamed != before.type.unnamed:
            if not _prints_alike(before.type, column.type):
                return CopyAnew(f"the type of {column.name} changed")
            retyped.append(column)
    if _is_rewritten(detail["files"], now.files) and (added or _is_touched(detail, now)):
        return CopyAnew("its rows were rewritten")
    dropped = tuple(column.name for number, column in was.items() if number not in to)
    return SchemaChange(tuple(added), dropped, tuple(renamed), tuple(retyped))


def _is_rewritten(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(now.get(oid, file) != file for oid, file in before.items())


def _is_touched(detail: Mapping[str, Any], now: Facts) -> bool:
    """Whether a column that stayed may have been altered: a VACUUM FULL writes new files, too, but leaves the
    columns alone."""
    marks = detail.get("marks")
    numbers = set(detail["numbers"].values())
    return marks is not None and any(
        marks.get(str(number)) != mark for number, mark in now.marks.items() if number in numbers
    )


def _loses_its_key(old: TableSchema, detail: Mapping[str, Any], now: Facts) -> bool:
    """Whether rows were found by a primary key that is no more. Under identity full the stream does not tell
    when it went, and two rows may have had one key since."""
    before = [detail["numbers"].get(name) for name in detail["primary_key"]]
    return (
        old.identity is ReplicaIdentity.FULL
        and bool(before)
        and before != [now.numbers[name] for name in now.primary_key]
    )


def _type(schema: TableSchema, name: str) -> ColumnType:
    return next(type for column, type in schema.layout if column == name)


def _prints_alike(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type prints the same under the new one, if rows were not rewritten."""
    before, after = old.base, new.base
    if before.name == after.name == "numeric":
        return after.modifier == -1 or _is_wider_numeric(before.modifier, after.modifier)
    if before.name == "varchar" and after.name in ("varchar", "text"):
        return after.modifier == -1 or 0 <= before.modifier <= after.modifier
    return before.unnamed == after.unnamed


def _is_wider_numeric(old: int, new: int) -> bool:
    """`numeric(p, s)`: the same scale, at least as many digits."""
    return old >= 4 and (new - 4) & 0x7FF == (old - 4) & 0x7FF and new >= old

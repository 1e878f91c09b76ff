"""How a table came from one schema to another, so that a destination can follow.

The stream only shows what a table looks like with its next row; which columns are the same ones is worked
out with the catalog's numbers. Those are of now, and the row may be older. Where the answer is not certain,
or where the rows themselves were rewritten, there is none: the table is copied anew, which is always right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.destinations.protocol import SchemaChange
from penstock.model import ColumnType, TableSchema
from penstock.pipeline.facts import Facts

_WIDER = {"int2": ("int4", "int8"), "int4": ("int8",), "varchar": ("text",)}


@dataclass(frozen=True, slots=True)
class CopyAnew:
    """The change cannot be followed."""

    why: str


def same(one: TableSchema, other: TableSchema) -> bool:
    """Whether two descriptions say the same, whatever their versions."""
    return (one.name, one.identity, one.columns) == (other.name, other.identity, other.columns)


def follow(
    old: TableSchema, new: TableSchema, known: Mapping[str, Any], now: Facts | None
) -> SchemaChange | CopyAnew:
    """From `old`, of which the catalog's facts are `known` (`Facts.detail`), to `new`, with those of now."""
    if _columns(old) == _columns(new):
        return SchemaChange()
    if _common(old, new) != _common(new, old):  # PostgreSQL keeps them in order: names were given to others
        return CopyAnew("its columns changed names among each other")
    gone = set(old.column_names) - set(new.column_names)
    come = [column for column in new.columns if column.name not in old.column_names]
    retyped = [c for c in new.columns if c.name in old.column_names and c.type != _type(old, c.name)]
    if not come and not retyped:
        return SchemaChange(dropped=tuple(column for column in old.column_names if column in gone))
    if now is None:
        return CopyAnew("its columns changed and it is no longer published as it was")
    if any(column.name not in now.numbers for column in (*come, *retyped)):
        return CopyAnew("its columns changed again before the change could be followed")
    return _with_numbers(old, new, known, now)


def _with_numbers(
    old: TableSchema, new: TableSchema, known: Mapping[str, Any], now: Facts
) -> SchemaChange | CopyAnew:
    by_number = {number: name for name, number in known["numbers"].items() if name in old.column_names}
    renamed, added, retyped = [], [], []
    kept = set()
    for column in new.columns:
        before = by_number.get(now.numbers.get(column.name, -1))
        if before is None and column.name in old.column_names and column.name not in now.numbers:
            before = column.name  # dropped by now: until then it was the same
        if before is None:
            added.append((column, now.missing.get(column.name)))
            continue
        kept.add(before)
        if before != column.name:
            renamed.append((before, column.name))
        if column.type != _type(old, before):
            retyped.append(column)
            if not _prints_alike(_type(old, before), column.type):
                return CopyAnew(f"the type of {column.name} changed")
    if added and not retyped and _rewritten(known["files"], now.files):
        return CopyAnew("its rows were rewritten")
    if added and retyped:
        return CopyAnew("columns were added and others changed their type")
    dropped = tuple(name for name in old.column_names if name not in kept)
    return SchemaChange(tuple(added), dropped, tuple(renamed), tuple(retyped))


def replaced(known: Mapping[str, Any], now: Facts) -> list[str]:
    """Columns that were dropped and made again under the same name: the stream cannot show that."""
    numbers: Mapping[str, int] = known["numbers"]
    return [name for name, number in now.numbers.items() if numbers.get(name, number) != number]


def _common(one: TableSchema, other: TableSchema) -> list[str]:
    return [name for name in one.column_names if name in other.column_names]


def _columns(schema: TableSchema) -> list[tuple[str, ColumnType]]:
    return [(column.name, column.type) for column in schema.columns]


def _type(schema: TableSchema, name: str) -> ColumnType:
    return next(column.type for column in schema.columns if column.name == name)


def _rewritten(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return any(now.get(oid, file) != file for oid, file in before.items())


def _prints_alike(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of the old type prints the same under the new one: no row need be read again."""
    before, after = old.base, new.base
    if before.name != after.name:
        return after.name in _WIDER.get(before.name, ()) and after.modifier == -1
    if before.name == "numeric":
        return after.modifier == -1 or _wider_numeric(before.modifier, after.modifier)
    if before.name == "varchar":
        return after.modifier == -1 or 0 <= before.modifier <= after.modifier
    return before == after


def _wider_numeric(old: int, new: int) -> bool:
    """`numeric(p, s)`: the same scale, at least as many digits."""
    return old >= 4 and (new - 4) & 0x7FF == (old - 4) & 0x7FF and new >= old


def remember(known: Mapping[str, Any], new: TableSchema, now: Facts | None) -> dict[str, Any]:
    """The facts to keep once `new` was followed. The files of now only if the catalog still says the same:
    otherwise it has moved on, and what it did to the rows is still to be found out."""
    if now is None:
        return dict(known)
    numbers = {name: now.numbers.get(name, known["numbers"].get(name, 0)) for name in new.column_names}
    files = dict(now.files) if same(now.schema, new) else known["files"]
    primary_key = [name for name in now.primary_key if name in new.column_names]
    return {**known, "numbers": numbers, "files": files, "primary_key": primary_key}

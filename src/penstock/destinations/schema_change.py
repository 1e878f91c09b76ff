"""A change of a table's columns, and the one order in which it is carried out.

Names come back: a column may get the name of one that was dropped, two may swap theirs, one may be dropped
and made again. So what goes, goes first; then the columns that stay get their new names; then others are
added; then types change. `dropped`, and the first of each pair in `renamed`, are names from before the
change; everything else is named as it is after it.

Every destination carries out `steps`, one after the other, and so does whoever runs a `ddl.txt`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count

from penstock.model import Column, TableName

TEMPORARY = "penstock_"


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Add:
    column: Column
    value: str | None
    """What rows have in it that are there already."""


@dataclass(frozen=True, slots=True)
class Retype:
    column: Column


Step = Drop | Rename | Add | Retype


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What became of a table between two versions of its schema, for a destination to follow."""

    added: tuple[tuple[Column, str | None], ...] = ()
    """Each with the value (PostgreSQL's text) that rows have which were there before."""
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    """From, to. All at once: two may swap their names."""
    retyped: tuple[Column, ...] = ()
    target: TableName | None = None
    """The table's name at the destination before, if it is another one now."""

    def __bool__(self) -> bool:
        return self != SchemaChange()

    def steps(self, taken: Collection[str] = ()) -> Iterator[Step]:
        """Yield what to do, in order. `taken`: names that columns of the table have besides those named here,
        which no temporary name may be."""
        yield from (Drop(name) for name in self.dropped)
        yield from self._renames(taken)
        yield from (Add(column, value) for column, value in self.added)
        yield from (Retype(column) for column in self.retyped)

    def _renames(self, taken: Collection[str]) -> Iterator[Rename]:
        """Order the renames: a name is given when it is free. Where each waits for another, in a circle, one
        steps aside."""
        left = dict(self.renamed)
        named = {*taken, *left.keys(), *left.values()}
        aside = (name for n in count() if (name := f"{TEMPORARY}{n}") not in named)
        while left:
            old = next((old for old, new in left.items() if new not in left), None)
            if old is not None:
                yield Rename(old, left.pop(old))
            else:
                old, temporary = next(iter(left)), next(aside)
                yield Rename(old, temporary)
                left[temporary] = left.pop(old)

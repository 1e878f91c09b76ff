"""The rules of a destination, `destinations[].tables`: which one holds for a table, and whether they hide
what they are to hide.

A rule with a slip of the pen has no effect, and what it was to hide leaves in the clear. So before anything
is copied each rule is held against the tables that are captured (`findings`), and while the pipeline runs no
column and no table gets out of its rule by another name (`escaped`, `moved`).

The first entry that matches a table is its rule, and the only one. One under the name of a table must fit
that table. One under a glob is meant for many: each column that it names must be in one of them at least,
and the others are delivered without it; it makes no new columns, since one could not be told from a mask
that is spelled wrongly.

Nothing here needs Spark. What only Spark can say, whether an expression fits, is asked in `analysis.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.config.destinations import DestinationConfig, DestinationTable
from penstock.config.tables import matches
from penstock.model import ReplicaIdentity, TableName, TableSchema
from penstock.model.errors import ConfigError, TransformRefused

REMEDY = "Correct `tables` of the destination; for what is yet to come, set `strict: false` there"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a rule."""

    rule: str
    problem: str
    certain: bool = True
    """Whether it is wrong; otherwise it may be meant so."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.problem}"


def applied(destination: DestinationConfig, tables: Iterable[TableSchema]) -> dict[str, list[TableSchema]]:
    """Return, for each entry, the tables that it is the rule of: those that no earlier one has taken."""
    taken: dict[str, list[TableSchema]] = {glob: [] for glob in destination.tables}
    for table in tables:
        first = next((glob for glob in taken if matches(glob, table.name)), None)
        if first is not None:
            taken[first].append(table)
    return taken


def findings(destination: DestinationConfig, tables: Iterable[TableSchema]) -> list[Finding]:
    """Return everything that is wrong with the rules, without looking into their expressions."""
    schemas = list(tables)
    problems = []
    for glob, taken in applied(destination, schemas).items():
        rules = destination.tables[glob]
        if taken:
            problems += [Finding(glob, reason) for reason in _unfit(rules, taken)]
            problems += [Finding(glob, reason, certain=False) for reason in _doubtful(rules, taken)]
        else:
            problem = _matches_nothing(destination, glob, [table.name for table in schemas])
            withdrawn = any(matches(glob, table) for table in destination.withdrawn)
            problems.append(Finding(glob, problem, certain=not withdrawn))
    return problems


def has_expressions(destination: DestinationConfig) -> bool:
    return any(rules.where is not None or rules.set for rules in destination.tables.values())


def refuse(destination: DestinationConfig, problems: Iterable[Finding]) -> list[Finding]:
    """Raise what keeps the destination from being delivered to; return what is only to be told."""
    reported = list(problems)
    wrong = [finding for finding in reported if finding.certain]
    if wrong and destination.strict:
        message = "\n".join(f"destination {destination.name}: {finding}" for finding in wrong)
        raise ConfigError(message, remedy=REMEDY)
    return reported


def check(rules: DestinationTable, source: TableSchema) -> None:
    """Raise what keeps the rules from being carried out at a table."""
    names = set(source.column_names)
    folded = {name.casefold(): name for name in names}
    for word, named in (("drop", {*rules.drop}), ("set", {*rules.set})):
        for name in sorted(named - names):
            if name.casefold() in folded:  # a mask that is put beside what it is to hide
                raise TransformRefused(
                    f"`{word}` names {name}: its column is called {folded[name.casefold()]}"
                )
    rules = rules.on(names)
    if unknown := set(rules.drop) - names:
        raise TransformRefused(f"`drop` names {_listed(unknown)}, which it does not have")
    if names <= {*rules.drop} and not {*rules.set} - names:
        raise TransformRefused("`drop` leaves none of its columns")
    full = source.identity is ReplicaIdentity.FULL
    key = {column.name for column in source.columns if column.key and not full}
    for word, named in (("drop", {*rules.drop}), ("set", {*rules.set})):
        if named & key:
            raise TransformRefused(f"`{word}` names {_listed(named & key)}, part of its key")
    if both := {*rules.drop} & {*rules.set}:
        raise TransformRefused(f"{_listed(both)} stands in `drop` and in `set`")


def escaped(
    rules: DestinationTable, others: DestinationTable, was: Mapping[str, int], now: Mapping[str, int]
) -> TransformRefused | None:
    """Return the error that a column, kept back by the rules, would be let out by the others, which hold now:
    it has another name than when it was delivered last. Columns are told apart by the catalog's numbers."""
    called = {number: column for column, number in now.items()}
    for column in sorted(rules.hidden & was.keys()):
        name = called.get(was[column], column)
        if name not in {column, *others.hidden}:
            word = "drop" if column in rules.drop else "set"
            return TransformRefused(
                f"its column {column}, which `{word}` names, is called {name} now",
                remedy=f"Name {name} in `{word}`, start again and run `penstock retry`",
            )
    return None


def moved(
    rules: DestinationTable, others: DestinationTable, was: TableName, columns: Collection[str]
) -> TransformRefused | None:
    """Return the error that a table left its rules by another name, under which others let more out."""
    kept = rules.hidden.intersection(columns) <= others.hidden
    if kept and rules.where in (None, others.where):
        return None
    return TransformRefused(
        f"it was called {was} and is now out of the rules for that name",
        remedy="Give its new name the same, or rename it back, start again and run `penstock retry`; with "
        "`strict: false` it goes on as its new name says",
    )


def _unfit(rules: DestinationTable, taken: list[TableSchema]) -> Iterable[str]:
    for table in taken:
        try:
            check(rules, table)
        except TransformRefused as error:
            yield f"{error.reason} (table {table.name})"
    if rules.for_many:
        there = {name for table in taken for name in table.column_names}
        folded = {name.casefold() for name in there}
        for word, named in (("drop", rules.drop), ("set", tuple(rules.set))):
            for name in named:
                if name.casefold() not in folded:
                    new = "; only a rule by a table's name makes new columns" if word == "set" else ""
                    yield f"`{word}` names {name}, which none of its tables has{_near(name, there) or new}"


def _doubtful(rules: DestinationTable, taken: list[TableSchema]) -> Iterable[str]:
    """Yield doubts: a new column is as right as a mask; one whose name is close to a column's may be meant
    for that."""
    for table in taken:
        for name in rules.set if not rules.for_many else ():
            near = _near(name, table.column_names)
            if name not in table.column_names and near and name.casefold() not in _folded(table):
                yield f"`set` makes a new column {name} of {table.name}{near}"


def _matches_nothing(destination: DestinationConfig, glob: str, tables: list[TableName]) -> str:
    hidden = [table for table in tables if matches(glob, table)]
    if not hidden:
        return f"matches no table that is captured{_near(glob, map(str, tables))}"
    earlier = {
        next(first for first in destination.tables if matches(first, table)): table for table in hidden
    }
    return f"has no effect: its tables are taken by {_listed(earlier)}, and the first entry that matches wins"


def _folded(table: TableSchema) -> set[str]:
    return {name.casefold() for name in table.column_names}


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

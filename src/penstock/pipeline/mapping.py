"""Deciding about a table of a source: whether it may be so, and putting it down.

Whatever can be seen beforehand is refused here, with a sentence: a table that cannot be followed, a target
that another table has, versions of rows that would be lost. The pipeline takes up what is put down, or finds
it when it is started (`followed_mapping.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import SourceConfig
from penstock.config.destinations import DestinationConfig
from penstock.config.mapping import TARGET, Decision, Decisions, Placing, TableOfSource
from penstock.destinations.protocol import Kind
from penstock.model import TableName
from penstock.model.errors import MappingRefused, PenstockError, UnknownTable, from_dict
from penstock.pipeline import shared_targets
from penstock.pipeline.source_tables import (
    Document,
    SourceTables,
    TableFilter,
    chosen_of,
    is_ours,
    takes_target,
)
from penstock.pipeline.table_states import KIND
from penstock.postgres.outline import Outline, Outlines
from penstock.state.store import Store

LONGEST = 63
"""Bytes of a name in PostgreSQL."""
KINDS = tuple(kind.value for kind in Kind)
NOW = "The pipeline runs: it takes this up within seconds"
LATER = "The pipeline does not run: it takes this up when it is started"


class MappingInFile(PenstockError):
    """The configuration file alone decides."""

    remedy = "Change `tables` in the file and start again, or set `mapping: database` there"


class InvalidMapping(PenstockError):
    """What is to be decided does not read as a decision."""

    remedy = "See what is expected in /openapi.json"


@dataclass(frozen=True, slots=True)
class TableMapping:
    """The decisions about a pipeline's tables."""

    tables: SourceTables
    store: Store

    def described(self, table: str, source: str | None) -> Document:
        """Return a table as `SourceTables.browse` has it."""
        of = self._source(source)
        return self._document(of, self._name(of, self.tables.catalogs[of.name].look(), table))

    def decide(self, table: str, source: str | None, decision: Decision, seen: int | None = None) -> Document:
        """Put down what is decided of a table; an empty decision takes back what was. Return the table as it
        is then, with when that takes effect. `seen` as `MappingRecords.decide` has it."""
        config = self.tables.config
        if config.mapping == "file":
            raise MappingInFile("the configuration says `mapping: file`: it alone decides about tables")
        of = self._source(source)
        outlines = {name: catalog.look() for name, catalog in self.tables.catalogs.items()}
        name = self._name(of, outlines[of.name], table)
        for destination, placing in decision.placings.items():
            self._check_placing(destination, placing)
        there = next((each for each in outlines[of.name].tables.values() if each.name == name), None)
        if there is not None:
            self._check_captured(of, outlines[of.name], there, decision)
        self.store.mapping.decide(
            (of.name, name),
            decision,
            seen,
            lambda decisions: self._check(decisions, (of.name, name), outlines),
        )
        runs = self.store.holder() is not None
        return self._document(of, name) | {"takes_effect": NOW if runs else LATER}

    def _document(self, source: SourceConfig, name: TableName) -> Document:
        page = self.tables.browse(self.store, TableFilter(source=source.name, only=name))
        if page["errors"]:
            raise from_dict(page["errors"][0])
        document: Document = page["tables"][0]
        return document

    def _source(self, name: str | None) -> SourceConfig:
        config = self.tables.config
        matching = [source for source in config.sources if name in (None, source.name)]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(source.name for source in config.sources)
        wrong = f"no source is called {name}" if name is not None else "there are several sources"
        raise UnknownTable(wrong, remedy=f"Name one of them: {names}")

    def _name(self, source: SourceConfig, outlines: Outlines, table: str) -> TableName:
        """Return the table's name: of one that is there, or of one of which something was decided."""
        decided = [name for of, name in self.store.mapping.read().decisions if of == source.name]
        names = [*(each.name for each in outlines.tables.values()), *decided]
        for name in names:
            if (str(name) == table or name == TableName.parse(table)) and not source.tables.is_ours(name):
                return name
        raise UnknownTable(
            f"the source {source.name} has no table {table}", remedy="See /tables for its tables"
        )

    def _check_placing(self, name: str, placing: Placing) -> None:
        destination = next((each for each in self.tables.config.destinations if each.name == name), None)
        if destination is None:
            names = ", ".join(each.name for each in self.tables.config.destinations)
            raise MappingRefused(f"no destination is called {name}", remedy=f"Name one of them: {names}")
        if placing and not takes_target(destination):
            raise MappingRefused(
                f"the destination {name} is of type {destination.type}, to which every table goes as it is",
                remedy="Give it neither a target nor a kind",
            )
        if placing.kind is not None and placing.kind not in KINDS:
            raise InvalidMapping(f"a kind is one of {', '.join(KINDS)}, not {placing.kind[:60]}")
        if placing.target is not None:
            check_target(placing.target)

    def _check_captured(
        self, source: SourceConfig, outlines: Outlines, table: Outline, decision: Decision
    ) -> None:
        if decision.captured is None:
            return
        if not is_ours(source, outlines):
            raise MappingRefused(
                f"the publication {source.publication_name} says which tables are captured, and is not "
                "Penstock's to alter",
                remedy="Have its owner alter it: alter publication … add table … or drop table …",
                source=source.name,
            )
        chosen = chosen_of(self.tables.under(self.store.mapping.read()).source(source.name), outlines)
        parents = [above.name for above in outlines.ancestors(table) if above.id in chosen]
        if parents:
            raise MappingRefused(
                f"it is a partition of {parents[0]}, with which its rows come",
                remedy="Decide about that table",
                table=table.name,
            )
        why = self.tables.catalogs[source.name].detail(outlines, [table])[table.id].unfit
        if decision.captured and why is not None:
            reason, _, remedy = why.partition(". ")
            raise MappingRefused(f"the table cannot be followed: {reason}", remedy=remedy, table=table.name)

    def _check(self, decisions: Decisions, table: TableOfSource, outlines: dict[str, Outlines]) -> None:
        """Raise if the table would take another's place, or lose the versions that it has."""
        config = self.tables.config.under(decisions)
        names = {source.name: _names(source, outlines[source.name]) for source in config.sources}
        source, name = table
        if name not in names[source]:
            return
        for sentence in shared_targets.meeting(config, names, table):
            raise MappingRefused(sentence, remedy="Give one of them another target")
        id = next(each.id for each in outlines[source].tables.values() if each.name == name)
        states = [state for state in self.store.tables(source) if state.key.table == id]
        for destination in config.destinations:
            for state in states:
                if state.key.destination == destination.name:
                    _keep_versions(destination, table, state.target, str(state.detail.get(KIND, "")))


def _names(source: SourceConfig, seen: Outlines) -> Sequence[TableName]:
    return [seen.tables[id].name for id in chosen_of(source, seen)]


def _keep_versions(
    destination: DestinationConfig, table: TableOfSource, stands: TableName, kind: str
) -> None:
    """Raise if a history is to be something else at the place where it stands, or something else a
    history."""
    source, name = table
    rules = destination.rules_of(name, source)
    if not kind or destination.target_by(rules, name) != stands:
        return
    if (kind == "history") != (rules.kind == "history"):
        had = "its versions would be lost" if kind == "history" else "its rows have no versions there"
        raise MappingRefused(
            f"{name} arrives as {kind} at {stands}, and cannot become {rules.kind} in the same place: {had}",
            remedy="Give it another target as well",
        )


def check_target(target: str) -> None:
    """Raise unless it reads as the name of one table."""
    if not re.fullmatch(TARGET, target):
        raise InvalidMapping(
            'a target is the name of a table, such as app.users or "My Schema"."my.table"',
            remedy='Write what holds a dot, a star or a bracket in double quotes, and a " in it twice',
        )
    name = TableName.parse(target)
    if max(len(part.encode()) for part in (name.schema, name.name)) > LONGEST:
        raise InvalidMapping(
            f"a name in PostgreSQL has at most {LONGEST} bytes", remedy="Give a shorter target"
        )

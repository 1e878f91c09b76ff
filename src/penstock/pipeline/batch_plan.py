"""Which changes of the spool a destination is given, table by table, each under its own schema.

A table's changes are cut into runs of one schema version each. Where a version differs from the one that the
destination followed last, the run says what to do first; where that cannot be said, the table is copied anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from penstock.changes.slices import Slice, read_slice, slices_of
from penstock.config.destinations import DestinationTable
from penstock.destinations.protocol import Delivery, Run, TableChanges
from penstock.destinations.schema_change import SchemaChange
from penstock.model import Lsn, TableId, TableSchema
from penstock.model.visibility import Visibility
from penstock.pipeline import schema_evolution
from penstock.pipeline.schema_evolution import CopyAnew, Evolved
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.table_facts import Facts
from penstock.pipeline.table_states import Tables
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableState

TableWork = tuple[TableChanges, TableState]
"""Changes, and what the table's state is once they are applied."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The changes of a table in a batch, and its state before and after them."""

    changes: TableChanges
    before: TableState
    after: TableState


@dataclass
class Changes:
    feed: SourceFeed
    tables: Tables
    store: Store
    manifest: Manifest
    recopies_on_new_key: bool
    """As `Traits` has it."""

    def __post_init__(self) -> None:
        self._schemas: dict[tuple[TableId, int], TableSchema] = {}

    def parts(self, start: Lsn, end: Lsn) -> dict[TableId, list[Slice]]:
        """Return all that committed in `[start, end)`, by table, in order."""
        by_table: dict[TableId, list[Slice]] = {}
        for part in self._slices(start, end):
            if part.table is not None:
                by_table.setdefault(part.table.id, []).append(part)
        return by_table

    def _slices(self, start: Lsn, end: Lsn) -> Iterator[Slice]:
        entries = self.manifest.entries(start, end)
        parts = {(part.table_id, part.schema_version) for entry in entries for part in entry.segment.parts}
        if not parts <= self._schemas.keys():  # a version that is known never changes
            self._schemas = self.manifest.schemas()
        return slices_of(self.feed.spec.spool.absolute(), entries, start, self._schemas)

    def messages(self, start: Lsn, end: Lsn) -> tuple[Slice, ...]:
        """Return the logical messages of `[start, end)`."""
        return tuple(part for part in self._slices(start, end) if part.table is None)

    def of(self, state: TableState, parts: Iterable[Slice], start: Lsn) -> TableWork | CopyAnew:
        """Return changes of a table that streams."""
        runs = self._runs(state, parts)
        if isinstance(runs, CopyAnew):
            return runs
        return TableChanges(runs[0], start), runs[1]

    def waiting(self, state: TableState, end: Lsn) -> TableWork | CopyAnew:
        """Return changes that have waited for a table since its copy began, or since it stopped."""
        assert state.position is not None
        parts = self.parts(state.position, end).get(state.key.table, [])
        if state.snapshot is not None:
            parts = self._unseen(state, parts, state.snapshot)
        runs = self._runs(state, parts)
        if isinstance(runs, CopyAnew):
            return runs
        return TableChanges(runs[0], state.position, state.snapshot), runs[1]

    def described(
        self, state: TableState, facts: Facts, position: Lsn
    ) -> TableWork | TableState | CopyAnew | None:
        """Return no changes, but the step to a schema that the catalog tells and the stream does not yet; or
        nothing for the destination, but what is now certain of the table."""
        followed = self.followed(state)
        evolved = schema_evolution.look(followed, state.detail, facts)
        if evolved is None or isinstance(evolved, CopyAnew):
            return evolved
        if schema_evolution.same(followed, facts.schema) and _primary_key(state) == facts.primary_key:
            return replace(state, detail=evolved.detail)
        schema = self._versioned(facts.schema)
        if (refused := self._refused(followed, schema, state, evolved)) is not None:
            return refused
        run, after = self._run(state, schema, evolved)
        self.store.learn(self.feed.name, schema, position)
        return TableChanges((run,), position), after

    def reconciled(self, state: TableState, version: int, facts: Facts | None) -> TableState | CopyAnew:
        """Return the state of a table of which the destination has followed this version, and the store does
        not know: a crash came in between."""
        schema = self.store.schema(self.feed.name, state.key.table, version)
        if version == state.version:
            return state
        if schema is None:
            return CopyAnew("the destination has followed a schema that is not known")
        evolved = schema_evolution.follow(self.followed(state), schema, state.detail, facts)
        return evolved if isinstance(evolved, CopyAnew) else self._run(state, schema, evolved)[1]

    def followed(self, state: TableState) -> TableSchema:
        """Return the table as the destination has it."""
        schema = self.store.schema(self.feed.name, state.key.table, state.version)
        assert schema is not None, f"version {state.version} of {state.name} is not in the store"
        return schema

    def has_followed(self, state: TableState, version: int) -> bool:
        """Whether a destination that followed this version has the table as it is known here."""
        schema = self.store.schema(self.feed.name, state.key.table, version)
        return schema is not None and schema_evolution.same(schema, self.followed(state))

    def learnt(self, facts: Facts) -> TableSchema:
        """Return the table as the catalog describes it, under a version that the store knows it by."""
        schema = self._versioned(facts.schema)
        self.store.learn(self.feed.name, schema, facts.lsn)
        return schema

    def _versioned(self, schema: TableSchema) -> TableSchema:
        """Return the schema under a version below zero, which are ours: the stream numbers its own from 1
        on."""
        versions = [version for _, version in self.store.schemas(self.feed.name, schema.id)]
        ours = [
            version for version in versions if version.version < 0 and replace(version, version=0) == schema
        ]
        return ours[0] if ours else replace(schema, version=min(0, *(v.version for v in versions), 0) - 1)

    def _runs(
        self, state: TableState, parts: Iterable[Slice]
    ) -> tuple[tuple[Run, ...], TableState] | CopyAnew:
        runs: list[Run] = []
        for schema, slices in groupby(parts, key=lambda part: part.table):
            assert schema is not None
            followed = self.followed(state)
            evolved: Evolved | CopyAnew = Evolved(SchemaChange(), dict(state.detail))
            if not schema_evolution.same(followed, schema):
                evolved = self._evolved(followed, schema, state)
            if isinstance(evolved, CopyAnew):
                return evolved
            if schema.version != state.version:
                self.store.learn(self.feed.name, schema, self.manifest.position)
            run, state = self._run(state, schema, evolved)
            runs.append(replace(run, slices=tuple(slices)))
        if not runs:
            runs = [Run(self._delivery(state, self.followed(state)), ())]
        return tuple(runs), state

    def _evolved(self, old: TableSchema, schema: TableSchema, state: TableState) -> Evolved | CopyAnew:
        """Return the step to another schema that a row has, by what the catalog says now."""
        facts = self.feed.discover().tables.get(schema.id)
        evolved = schema_evolution.follow(old, schema, state.detail, facts)
        if isinstance(evolved, CopyAnew):
            return evolved
        return self._refused(old, schema, state, evolved) or evolved

    def _refused(
        self, old: TableSchema, schema: TableSchema, state: TableState, evolved: Evolved
    ) -> CopyAnew | None:
        """Return why the destination cannot follow a step that the table has made; None if it can."""
        if self.recopies_on_new_key:
            if old.name != schema.name:
                return CopyAnew(f"it was called {old.name} before")
            if self._delivery(state, old).key != self.tables.delivery(schema, state, evolved.detail).key:
                return CopyAnew("it has another key")
        if passes_a_rule(self.tables.rules(schema.name), old, evolved.change):
            return CopyAnew("the rules of the destination hold for other columns than before")
        return None

    def _run(self, state: TableState, schema: TableSchema, evolved: Evolved) -> tuple[Run, TableState]:
        """Return the beginning of a run under another schema, and the table's state after it."""
        delivery, change = self.tables.delivery(schema, state, evolved.detail), evolved.change
        if delivery.target != state.target:
            change = replace(change, target=state.target)
        changed = replace(
            state,
            name=schema.name,
            target=delivery.target,
            version=schema.version,
            detail=evolved.detail,
        )
        return Run(delivery, (), change or None), changed

    def _delivery(self, state: TableState, schema: TableSchema) -> Delivery:
        return self.tables.delivery(schema, state, state.detail)

    def _unseen(self, state: TableState, parts: list[Slice], seen: Visibility) -> list[Slice]:
        """Return the parts without those whose every change is in the copy: they may have a schema older than
        the copy's, and the destination must not go back to that."""
        followed = self.followed(state)
        if all(part.table is not None and schema_evolution.same(part.table, followed) for part in parts):
            return parts
        return [part for part in parts if _holds_unseen(part, seen)]


def _holds_unseen(part: Slice, seen: Visibility) -> bool:
    rows = read_slice(replace(part, columns=("xid",), after=None))
    return not all(bool(seen.sees(batch["xid"].to_numpy()).all()) for batch in rows)


def passes_a_rule(rules: DestinationTable, old: TableSchema, change: SchemaChange) -> bool:
    """Whether old rows would come out of the rules with other values. A column comes under them, or leaves
    them; or a name that they may read, in `set` or `where`, is that of another column now. A new column that
    `set` computes has been there all along, unless the rule is for many."""
    renamed = {name for pair in change.renamed for name in pair}
    added = {column.name for column, _ in change.added}
    new_names = added | {new for _, new in change.renamed}
    reads = rules.where is not None or bool(rules.set)
    return bool(
        (rules.for_many and added & rules.set.keys())
        or renamed & rules.hidden
        or (reads and new_names.intersection(old.column_names))
    )


def _primary_key(state: TableState) -> tuple[str, ...]:
    return tuple(state.detail.get("primary_key", ()))

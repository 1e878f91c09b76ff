"""The tables of one source on their way to one destination: their phases, and what the spool keeps for them.

A table that does not stream (it is being copied, or it is errored) *holds* the spool: a consumer of its own,
`<destination>/<table id>`, stands where its changes begin to wait, so that the stream itself can go on.
The hold is registered before anybody relies on it and let go after nobody does any more; what a crash in
between leaves is found by the phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog

from penstock.config.destinations import DestinationConfig, DestinationTable
from penstock.destinations.protocol import Delivery, Kind, TableChanges
from penstock.model import ZERO, Lsn, TableId, TableName, TableSchema
from penstock.model.ddl import DdlEvent
from penstock.model.errors import DestinationBusy, PenstockError
from penstock.model.phases import Phase
from penstock.pipeline.table_actions import PAUSE, RELOAD
from penstock.pipeline.table_facts import Facts
from penstock.pipeline.transform.rules import escaped, moved
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableKey, TableState

KIND = "kind"
"""In a table's `detail`: as what it was copied. Its target stands beside it."""
TIMELINE = "timeline"
"""In a table's `detail`, until its copy is handed over: the server's timeline on which that was made."""


class Tables:
    def __init__(self, store: Store, manifest: Manifest, source: str, config: DestinationConfig) -> None:
        self._store = store
        self._manifest = manifest
        self._source = source
        self._config = config
        self._agreed: dict[TableId, tuple[object, ...]] = {}
        """How tables arrive that do so as the rules say: they need not be compared again."""
        self._agreed_under: object = None
        self._log = structlog.get_logger("penstock.pipeline").bind(source=source, destination=config.name)

    def __iter__(self) -> Iterator[TableState]:
        return iter(self._store.tables(self._source, self._config.name))

    def get(self, table: TableId) -> TableState | None:
        return self._store.table(TableKey(self._source, self._config.name, table))

    # Phases

    def add(self, facts: Facts, fresh: frozenset[str] | None) -> TableState:
        """Add a table that was not delivered yet. `fresh`: the membership under which the spool has all of
        its changes from the first on, if there is one."""
        self.hold(facts.id)
        state = TableState(
            key=TableKey(self._source, self._config.name, facts.id),
            name=facts.schema.name,
            target=self.target_of(facts.schema.name),
            phase=Phase.INIT,
            since=datetime.now(UTC),
            detail={"fresh": sorted(fresh or ())},
            total_bytes=facts.bytes,
        )
        self.put(state, "found")
        return state

    def copy_anew(self, state: TableState, why: str) -> None:
        self.hold(state.key.table)
        self.put(to_be_copied(replace(state, target=self.target_of(state.name))), why)

    def fail(
        self, state: TableState, error: PenstockError, position: Lsn | None, retry_in: float | None
    ) -> None:
        """Stop the table; its changes from `position` on wait (None: it was being copied)."""
        if position is not None:
            self._manifest.register(self._holder(state.key.table), position)
        retry_at = None if retry_in is None else datetime.now(UTC) + timedelta(seconds=retry_in)
        failed = replace(
            state,
            phase=Phase.ERRORED,
            error=error.at(table=state.name),
            attempts=state.attempts + 1,
            position=position,
            retry_at=retry_at,
        )
        self.put(failed, error.reason)

    def due(self, now: datetime) -> set[TableId]:
        """Return the tables that are to be tried again. Of those that somebody at the destination keeps busy
        only the one whose turn has been longest: each takes a moment, and there may be hundreds."""
        waiting = [(state.retry_at, state) for state in self if state.phase is Phase.ERRORED]
        due = [(at, state) for at, state in waiting if at is not None and at <= now]
        busy = [(at, state.key.table) for at, state in due if isinstance(state.error, DestinationBusy)]
        return {state.key.table for _, state in due} - {table for _, table in sorted(busy)[1:]}

    def streams(self, state: TableState, why: str) -> None:
        """Record that the table's changes come with the stream from here on."""
        ready = replace(
            state, position=None, snapshot=None, snapshot_lsn=None, error=None, attempts=0, retry_at=None
        )
        ready = replace(ready, detail={k: v for k, v in state.detail.items() if k != TIMELINE})
        self.put(replace(ready, phase=Phase.READY), why)
        self.release(state.key.table)

    def put(self, state: TableState, why: str = "") -> None:
        before = self._store.table(state.key)
        if before is None or before.phase is not state.phase:
            state = replace(state, since=datetime.now(UTC))
            tell = self._log.warning if state.told == Phase.ERRORED else self._log.info
            tell(f"table {state.told}", table=str(state.name), why=str(state.error or why))
        if before is None:
            self._store.put(state, why)
        else:
            self._store.update(state.key, partial(_still_asked_for, state), why)

    def remove(self, state: TableState) -> None:
        """Remove a table that is no longer published: what is known of it goes, its data stays."""
        why = "it is not published any more, or has no column left"
        self._log.info(f"table no longer delivered: {why}", table=str(state.name))
        self._store.remove(state.key)
        self.release(state.key.table)

    def wait(self, table: TableKey, error: PenstockError | None) -> None:
        """Tell why the copy of a table does not begin yet; None: it does not wait for that any more."""
        state = self._store.table(table)
        if state is not None and state.error is None and error is not None:
            self._log.warning("table waits to be copied", table=str(state.name), why=error.reason)
        self._store.update(table, partial(_waiting, error))

    def is_captured(self, lsn: Lsn, timeline: int) -> bool:
        """Whether the spool has all that came before this place on that timeline of the server's."""
        return self._manifest.position >= lsn and self.timeline in (None, timeline)

    @property
    def timeline(self) -> int | None:
        """Return the server's timeline on which the stream is; None: an earlier version read it."""
        return self._manifest.timeline

    def is_of_another_timeline(self, state: TableState) -> bool:
        """Whether the stream is on another timeline than the table's copy was made on. What the copy has may
        then be of a server that is gone: it may have been ahead of the one that was promoted."""
        made, reached = state.detail.get(TIMELINE), self.timeline
        return None not in (made, reached) and made != reached

    # Holds

    def hold(self, table: TableId, position: Lsn = ZERO) -> Lsn:
        """Keep the table's changes from `position` on, or from as early on as the spool has them; return from
        where. A hold that is there stays."""
        holder = self._holder(table)
        while True:
            self._manifest.register(holder, max(position, self._manifest.retired))
            held = self._manifest.consumers()[holder]
            if held >= self._manifest.retired:
                return held
            self._manifest.forget(holder)  # removed while it was being registered

    def hold_at(self, state: TableState, position: Lsn) -> None:
        """Keep the changes of a table that waits, from where it says; a hold that is there stays."""
        self._manifest.register(self._holder(state.key.table), position)

    def hold_from(self, table: TableId, position: Lsn) -> None:
        """Keep the changes of a table that streamed from here on, and none from before."""
        self.release(table)
        self.hold(table, position)

    def hold_back(self, state: TableState, position: Lsn) -> bool:
        """Keep the changes of a table that waits from further back on; return whether the spool has them."""
        return self._manifest.rewind(self._holder(state.key.table), position)

    def release(self, table: TableId) -> None:
        self._manifest.forget(self._holder(table))

    def release_idle(self) -> None:
        """Let go of what is held for tables that stream, or are none any more: a crash may have left it, or a
        copy that was begun when its table was removed."""
        waiting = {self._holder(state.key.table) for state in self if not state.phase.streams}
        for consumer in self._manifest.consumers():
            if consumer.startswith(f"{self._config.name}/") and consumer not in waiting:
                self._manifest.forget(consumer)

    def _holder(self, table: TableId) -> str:
        return f"{self._config.name}/{table}"

    # How they arrive

    def keep_masked(self, state: TableState, name: TableName, detail: Mapping[str, Any]) -> None:
        """Raise what keeps a table from being delivered under this name and with these columns, because a
        rule held for it until now that does not any more."""
        numbers = state.detail.get("numbers", {})
        rules, others = self.rules(state.name), self.rules(name)
        error = escaped(rules, others, numbers, detail.get("numbers", numbers))
        left = moved(rules, others, state.name, numbers or rules.hidden)
        if left is not None and not self._config.strict:
            self._log.warning(
                "table has another name, and its rules do not hold for it any more",
                table=str(name),
                reason=left.reason,
            )
        elif error is None:
            error = left
        if error is not None:
            raise error.at(table=name)

    def tellable(self, events: Sequence[DdlEvent], chosen: Iterable[TableChanges]) -> Sequence[DdlEvent]:
        """Return schema changes as the destination may know them. What a rule hides may stand in the text of
        a command, as a default, in a check: where rules hide anything, only tables without have their
        text."""
        if not any(any(rules.masks) for rules in self._config.tables.values()):
            return events
        names = {(state.key.table, state.name) for state in self}
        names |= {(run.delivery.id, run.delivery.table.name) for changes in chosen for run in changes.runs}
        masked = {table for table, name in names if any(self.rules(name).masks)}
        clear = {table for table, _ in names} - masked
        return [event if event.table in clear else replace(event, command="") for event in events]

    def rules(self, name: TableName) -> DestinationTable:
        return self._config.rules_of(name, self._source)

    def target_of(self, name: TableName) -> TableName:
        return self._config.target_of(name, self._source)

    def placed(self, name: TableName) -> tuple[TableName, str]:
        """Return where and as what a table of this name arrives, by the same rules."""
        rules = self.rules(name)
        return self._config.target_by(rules, name), rules.kind

    def delivery(self, schema: TableSchema, state: TableState, detail: Mapping[str, Any]) -> Delivery:
        """Return how a table arrives: where and as what it was copied, whatever the rules say by now. With
        another name it has the target that this gives it."""
        same_name = schema.name == state.name
        return Delivery(
            source=self._source,
            table=schema,
            target=state.target if same_name else self.target_of(schema.name),
            kind=Kind(detail.get(KIND) or self.rules(schema.name).kind),
            primary_key=tuple(detail.get("primary_key", ())),
        )

    def why_anew(self, state: TableState) -> str | None:
        """Return why a table is to be copied anew, if so: somebody wants it, or the rules have it arrive
        elsewhere, or as something else, than where and as what it was copied. They change from one start to
        the next, and by decisions (`config/mapping.py`)."""
        if state.detail.get(RELOAD):
            return "asked to reload"
        decided = self._config.decided
        if decided is not self._agreed_under:
            self._agreed, self._agreed_under = {}, decided
        arrives = (state.name, state.target, state.detail.get(KIND))
        if self._agreed.get(state.key.table) == arrives:
            return None
        target, kind = self.placed(state.name)
        if target != state.target:
            return f"it is to arrive at {target}"
        if KIND not in state.detail:  # copied by an earlier version, which did not remember
            self.put(replace(state, detail={**state.detail, KIND: kind}))
        elif state.detail[KIND] != kind:
            return f"it is to arrive as {kind}"
        self._agreed[state.key.table] = arrives
        return None


def is_handed_over(state: TableState) -> bool:
    """Whether no copy of the table waits to be handed over, nor for somebody else to make it. The one has a
    place, though not always a snapshot; the other has none yet, but a timeline."""
    return state.snapshot_lsn is None and state.snapshot is None and TIMELINE not in state.detail


def _still_asked_for(state: TableState, stored: TableState) -> TableState:
    """Return the state with what is stored as asked for: a reload, unless the table is to be copied now; a
    pause, unless it has stopped."""
    asked = {key: True for key in (RELOAD, PAUSE) if stored.detail.get(key)}
    if state.phase is Phase.INIT:
        asked.pop(RELOAD, None)
    if state.phase is Phase.ERRORED:
        asked.pop(PAUSE, None)
    return replace(state, detail={**state.detail, **asked}) if asked else state


def _waiting(error: PenstockError | None, state: TableState) -> TableState | None:
    told = error and error.at(table=state.name)
    return replace(state, error=told) if state.phase is Phase.INIT else None


def to_be_copied(state: TableState) -> TableState:
    """Return the state from the beginning, to be copied. Which column was which is still known, so that none
    escapes its mask by a new name; and whoever is paused is so again after the copy."""
    kept = {key: value for key, value in state.detail.items() if key in ("numbers", PAUSE)}
    if state.is_paused:
        kept[PAUSE] = True
    return replace(state, phase=Phase.INIT, error=None, detail=kept)

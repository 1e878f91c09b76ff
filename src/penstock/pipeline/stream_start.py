"""Where a stream begins: where the destination stands, and what a crash, or whoever went back, has left.

Three things remember how far it came: the destination, with its data; the manifest, for whom it keeps what
follows; and the store. The destination is believed where it remembers. It may be behind the others, if it was
restored, and ahead of the source, if that was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.destinations.protocol import Recorded
from penstock.model import ZERO, Lsn
from penstock.model.errors import CopyNeeded
from penstock.model.phases import Phase
from penstock.pipeline import destination_went_back, source_went_back
from penstock.pipeline.schema_evolution import CopyAnew
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream


class Beginning:
    def __init__(self, stream: Stream, manifest: Manifest, store: Store) -> None:
        self._stream = stream
        self._tables = stream.tables
        self._target = stream.target
        self._source = stream.feed.name
        self._name = stream.config.name
        self._manifest = manifest
        self._store = store

    def find(self) -> bool:
        """Put the stream where it goes on, with every table in a state that fits to it. False while the spool
        is younger than what was delivered."""
        name, traits = self._name, self._target.traits
        self._manifest.register(name, self._manifest.position)
        there = self._target.position(self._source)
        before = max(self._manifest.consumers()[name], self._manifest.retired)
        delivered = [state for state in self._tables if state.phase is not Phase.INIT]
        self._stream.position = before
        if delivered and traits.keeps_tables:  # otherwise nobody knows which tables the last batch stopped
            self._stream.position = max(before, there or ZERO)
        waited_for = [state.position for state in delivered if state.position is not None]
        needed, captured = max(self._stream.position, *waited_for, ZERO), self._manifest.position
        progress = self._store.progress(self._source, name)
        reached = max(needed, there or ZERO, progress.position if progress else ZERO)
        if reached > captured and source_went_back.copied_anew(self._stream.feed, self._tables, reached):
            self._stream.position = before
            self._target.begin(self._source, before)
            self._store.set_back(self._source, name, before)
        elif needed > captured:
            return False
        if traits.keeps_position and (there is None or there < before):
            self._stream.position = destination_went_back.go_on_from(
                self._stream, self._manifest, self._store, there
            )
        elif self._is_to_be_rewound():
            self._stream.position = self._manifest.consumers()[name]
        self._reconcile()
        self._find_gaps(there)
        if self._is_to_be_told(there, is_new=progress is None):
            self._target.begin(self._source, self._stream.position)
        return True

    def _is_to_be_rewound(self) -> bool:
        """Whether the stream goes back to what was delivered last, where only the store knows that: the
        destination was not configured for a while, and the spool kept nothing for it. Tables whose next
        changes are gone are copied anew (`_find_gaps`)."""
        progress = self._store.progress(self._source, self._name)
        return (
            not self._target.traits.keeps_position
            and progress is not None
            and progress.position < self._stream.position
            and self._manifest.rewind(self._name, progress.position)
        )

    def _is_to_be_told(self, there: Lsn | None, *, is_new: bool) -> bool:
        """Whether the destination has to know where the stream goes on. One that keeps no tables may be ahead
        of it: what comes again is recognised."""
        traits = self._target.traits
        if not traits.keeps_position:
            return is_new
        if there is None or there < self._stream.position:
            return True
        return there > self._stream.position and (traits.keeps_tables or is_new)

    def _reconcile(self) -> None:
        """Take over what the destination remembers: it knows better than the store what it has."""
        recorded = self._target.recorded(self._source)
        for state in list(self._tables):
            there = recorded.get(state.key.table)
            if state.phase is Phase.DATA_SYNC:
                self._tables.copy_anew(replace(state, phase=Phase.INIT), "the copy was interrupted")
            elif there is not None and there.copy == state.copy and _may_be_done(state, there):
                self._take_up(state, there)
            elif state.phase.streams and self._target.traits.keeps_tables:
                if there is None or there.copy != state.copy:
                    self._stream.copy_anew(state, "the destination does not have the copy that it had")
                else:
                    self._take_up(state, there)

    def _take_up(self, state: TableState, there: Recorded) -> None:
        """Take up a table that streams, or was handed over, with the schema that the destination has of
        it."""
        facts = self._stream.feed.published.tables.get(state.key.table)
        after = self._stream.changes.reconciled(state, there.version, facts)
        if isinstance(there.error, CopyNeeded):
            self._tables.copy_anew(state, there.error.reason)
        elif isinstance(after, CopyAnew):
            self._stream.copy_anew(state, after.why)
        elif state.phase is Phase.FINISHED_COPY:
            self._tables.streams(after, "it had been handed over")
        elif state.phase is Phase.ERRORED:
            self._tables.streams(after, "it had caught up")
        elif there.error is not None:
            self._stream.fail(after, there.error, there.position)
        else:
            self._tables.put(after)

    def _find_gaps(self, there: Lsn | None) -> None:
        """Find gaps: the spool may be a new one, since it was removed, or the slot was lost. A table whose
        next changes are not in it is copied anew; for others that wait it keeps them as the old one did."""
        reload = self._stream.feed.source.startup_mode == "force_reload"
        begins, delivered = self._manifest.retired, there
        if not self._target.traits.keeps_tables:
            progress = self._store.progress(self._source, self._name)
            delivered = progress.position if progress else None
            if progress is None:  # from here on we know where the stream began
                self._store.advance(
                    self._source,
                    self._name,
                    self._stream.position,
                    complete_through=None,
                    rows=0,
                )
        for state in list(self._tables):
            position = delivered if state.phase.streams else state.position
            if reload:
                self._tables.copy_anew(state, "startup_mode is force_reload")
            elif state.phase is Phase.INIT or position is None:
                continue
            elif position < begins:
                self._tables.copy_anew(state, f"changes from {position} to {begins} are not in the spool")
            elif not state.phase.streams:
                self._tables.hold_at(state, position)


def _may_be_done(state: TableState, there: Recorded) -> bool:
    """Whether a table was handed over, or caught up, without the store's knowing, if its copy is there."""
    stopped = state.phase is Phase.ERRORED and state.position is not None
    return state.phase is Phase.FINISHED_COPY or (stopped and there.error is None)

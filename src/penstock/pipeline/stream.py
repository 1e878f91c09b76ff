"""One source on its way to one destination: its batches, and what happens between two of them.

Nothing here races with anything else (`query.py`): a table is handed over, stopped, taken up again or follows
a new schema only while the stream stands still at `position`.

What a crash leaves, after each step of a batch:
1. the destination has written it, and remembers so: it is written again and recognised there;
   (a destination that does not remember gets it a second time)
2. tables that failed are held and errored in the store: as it should be;
   if the crash came before, the destination's own record of them says so at the next start;
3. the consumer has moved on in the manifest: the batch is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import structlog
from pyspark.sql import SparkSession

from penstock.changes.slices import Slice
from penstock.config import Config
from penstock.config.destinations import DestinationConfig
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.ledger import refuse_if_behind
from penstock.destinations.protocol import TableChanges, Target
from penstock.model import ZERO, Lsn, TableId
from penstock.model.errors import (
    CopyNeeded,
    CopyRuledOut,
    PenstockError,
    Scope,
    TablePaused,
    TargetTaken,
    TransformRefused,
)
from penstock.model.phases import Phase
from penstock.pipeline import ddl_events
from penstock.pipeline.arrivals import Arrivals
from penstock.pipeline.batch_plan import Changes, Chosen
from penstock.pipeline.catalog_following import CatalogFollowing
from penstock.pipeline.descriptions import Descriptions
from penstock.pipeline.name_owners import Places
from penstock.pipeline.query import StreamQuery
from penstock.pipeline.schema_evolution import CopyAnew
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.stream_start import Beginning
from penstock.pipeline.table_actions import PAUSE
from penstock.pipeline.table_reloads import TableReloads, may_begin, reload_at_once
from penstock.pipeline.table_states import Tables, is_handed_over
from penstock.pipeline.transform.transform import Transforms
from penstock.pipeline.unfinished_steps import Unfinished
from penstock.state.store import Store, TableState

TOLD = 5.0
"""Seconds between two notes of an idle stream's progress."""


class Stream:
    def __init__(
        self, config: Config, feed: SourceFeed, target: Target, destination: DestinationConfig, store: Store
    ) -> None:
        self.feed = feed
        self.target = target
        self.config = destination
        self.position = ZERO
        self.patient = target.traits.waits_for_interval
        self.streaming_only = target.traits.takes_copies and feed.source.startup_mode == "streaming_only"
        self._pipeline = config
        self._store = store
        self._manifest = feed.open()
        self.tables = Tables(store, self._manifest, feed.name, destination)
        self.places = Places(feed, self.tables)
        self.changes = Changes(feed, self.tables, store, self._manifest, target.traits.recopies_on_new_key)
        self.query = StreamQuery(config, feed, destination, store, self)
        self.unfinished = Unfinished()
        self.arrivals, self.descriptions = Arrivals(self), Descriptions(self)
        self.following = CatalogFollowing(self)
        self.reloads = TableReloads.of(self)
        self.transforms: Transforms
        self._last_note, self._aligned = 0.0, False
        self._log = structlog.get_logger("penstock.pipeline").bind(
            source=feed.name, destination=destination.name
        )

    # Beginning and end

    def start(self, spark: SparkSession) -> bool:
        """Find where the destination stands, settle what a crash left, and begin. False, with nothing begun,
        while the spool is younger than what was delivered: capture has to come there first."""
        if not Beginning(self, self._manifest, self._store).find():
            return False
        self.arrivals.look(self.feed.published)
        folder = self.feed.spec.spool.absolute() / "transformed" / self.config.name
        self.transforms = Transforms(spark, folder)
        self.query.start(spark)
        return True

    @property
    def stopping(self) -> threading.Event:
        return self.query.stopping

    def stop(self) -> None:
        self.query.stop()
        self._manifest.close()

    # A batch

    def apply(self, end: Lsn) -> None:
        self.unfinished.finish()
        begun, start = time.monotonic(), self.position
        if end <= start:
            return  # finishing what was begun came as far
        parts = self.changes.parts(start, end)
        recorded = ddl_events.read(parts.pop(self.feed.history or TableId(0), ()), start, self.feed.marker)
        self.arrivals.take_in(parts.keys())
        if self.target.reloads is None:
            reload_at_once(self, recorded.markers)
        if self.target.traits.wants_ddl:
            parts = {table: [] for table in recorded.tables} | parts
        chosen = self._chosen(parts, start)
        tables = [choice.changes for choice in chosen]
        batch = ChangeBatch(
            self.feed.name,
            start,
            end,
            tuple(tables),
            self.feed.complete_through(end),
            self.changes.messages(start, end) if self.target.traits.wants_messages else (),
            tuple(self.tables.tellable(recorded.schema_changes, tables)),
            recorded.markers,
            recorded.refused,
        )
        self.unfinished.do(partial(self._write, batch, chosen))
        self.transforms.clean_up()
        if chosen:
            self._log.debug(
                "batch",
                rows=batch.rows,
                tables=len(chosen),
                bytes=end - start,
                position=str(end),
                seconds=round(time.monotonic() - begun, 3),
                table_rows={str(changes.delivery.table.name): changes.rows for changes in tables},
            )

    def _chosen(self, parts: Mapping[TableId, list[Slice]], start: Lsn) -> list[Chosen]:
        """Return the tables that are delivered, those last that take the place of another one."""
        streaming = {state.key.table: state for state in self.tables if state.phase.streams}
        tried = [
            self._choose(streaming[table], slices, start)
            for table, slices in parts.items()
            if table in streaming
        ]
        return sorted((choice for choice in tried if choice is not None), key=self._takes_anothers_place)

    def _write(self, batch: ChangeBatch, chosen: list[Chosen]) -> None:
        """Write the batch, and record what became of its tables."""
        failed: dict[TableId, PenstockError] = {}
        keeps_position = self.target.traits.keeps_position  # then it is always told how far it came
        if batch.tables or batch.messages or keeps_position or self.query.is_waiting:
            failed = dict(self.target.write(batch))
        for choice in chosen:
            error = failed.get(choice.before.key.table)
            if error is not None:
                self.unfinished.then(partial(self.fail, choice.before, error, batch.start))
            elif choice.after != choice.before:
                self.unfinished.then(partial(self.tables.put, choice.after))
        self.unfinished.then(partial(self._advance, batch.end, batch.complete_through, batch.rows))
        if self.reloads is not None:
            self.unfinished.then(partial(self.reloads.seen, batch.markers))

    def _choose(self, state: TableState, parts: list[Slice], start: Lsn) -> Chosen | None:
        """Return the changes of a table as it is delivered. Where there are none to be had the table stops
        here, and that is stored before the batch is written: the destination will not know of it."""
        try:
            planned = self.changes.of(state, parts, start)
            if not isinstance(planned, CopyAnew):
                return Chosen(self.transformed(state, *planned), state, planned[1])
            self.copy_anew(state, planned.why)
        except PenstockError as error:
            if error.scope != "table":
                raise
            self.unfinished.do(
                partial(self.target.hold, self.feed.name, state.key.table, start, error),
                partial(self.fail, state, error, start),
            )
        return None

    def copy_anew(self, state: TableState, why: str, stands: Lsn | None = None) -> None:
        """Copy the table anew. The destination is told, and where the table stands, if not with the stream:
        it must not take the table for one that follows the stream."""
        table, position = state.key.table, self.position if stands is None else stands
        if self.streaming_only and state.phase.streams:
            self.tables.hold_from(table, position)  # what it has stays: earlier changes would come twice
        self.unfinished.do(
            partial(self.target.hold, self.feed.name, table, position, CopyNeeded(why)),
            partial(self.target.expect, self.feed.name, {table: state.name}),
            partial(self.tables.copy_anew, state, why),
        )

    def transformed(self, state: TableState, changes: TableChanges, after: TableState) -> TableChanges:
        for run in changes.runs:
            self.tables.keep_masked(state, run.delivery.table.name, after.detail)
        return self.transforms.changes(self.tables.rules(changes.delivery.table.name), changes)

    def _advance(self, position: Lsn, complete: datetime | None, rows: int) -> None:
        self._store.advance(self.feed.name, self.config.name, position, complete_through=complete, rows=rows)
        self._manifest.advance(self.config.name, position)
        self.position = position

    def _takes_anothers_place(self, choice: Chosen) -> bool:
        """Whether the table takes the name that another one had: that one goes first, if it goes."""
        moved = choice.after.target != choice.before.target
        return moved and self.places.owner(choice.after.target, choice.after.key.table) is not None

    def fail(self, state: TableState, error: PenstockError, position: Lsn | None) -> None:
        """Stop the table. One whose new name is another's goes on once that has moved away. Where it does
        not, or where only its rows are left, it is copied anew into their place."""
        if isinstance(error, TargetTaken) and (
            position is None
            or state.attempts >= self._pipeline.retry.attempts
            or not self.places.is_awaited(state)
        ):
            self.copy_anew(state, error.reason)
            return
        self.tables.fail(state, error, position, self._retry_in(error, state.attempts))

    def _retry_in(self, error: PenstockError, attempts: int) -> float | None:
        retry = self._pipeline.retry
        ends = error.scope is Scope.TABLE and not error.endless
        if not error.retry or (ends and attempts >= retry.attempts):
            return None
        return float(min(retry.initial * 2 ** min(attempts, 30), retry.max))

    # Between two batches

    def settle(self) -> None:
        self.unfinished.finish()
        if not self._is_between_segments():
            return
        self.arrivals.look(self.feed.published)
        if self.reloads is not None:
            self.reloads.settle()
        reached, due = self.reached(), self.tables.due(datetime.now(UTC))
        self.arrivals.let_go(reached)
        for table in [state.key.table for state in self.tables]:
            if (state := self.tables.get(table)) is not None:  # as those before it have left it
                self._settle_table(state, reached, due)
        self.descriptions.tell()
        if time.monotonic() - self._last_note > TOLD:
            self.tables.release_idle()
            self._note_progress(reached)
            self._last_note = time.monotonic()  # not before: a destination that is away is asked again
        self.transforms.clean_up()

    def _settle_table(self, state: TableState, reached: Lsn, due: Collection[TableId]) -> None:
        if may_begin(state) and (why := self.tables.why_anew(state)):
            if self.reloads is not None:
                self.reloads.cancel_export(state)
            self.copy_anew(state, why)
        elif state.phase is Phase.FINISHED_COPY and state.snapshot_lsn and state.snapshot_lsn <= reached:
            self._hand_over(state, reached)
        elif state.phase is Phase.ERRORED and state.key.table in due:
            self._retry(state, reached)
        elif state.phase.streams and state.detail.get(PAUSE):
            self._pause(state)
        elif state.phase.streams:
            self.following.follow(state, reached)

    def _pause(self, state: TableState) -> None:
        """Stop a table where it is, since somebody wants that; its changes wait in the spool."""
        error = TablePaused("it was asked to pause")
        detail = {key: value for key, value in state.detail.items() if key != PAUSE}
        self.unfinished.do(
            partial(self.target.hold, self.feed.name, state.key.table, self.position, error),
            partial(self.tables.fail, replace(state, detail=detail), error, self.position, None),
        )

    def _note_progress(self, reached: Lsn) -> None:
        """Tell an idle destination how far the stream is, or see that it is there, and still where it was."""
        if reached > self.position:
            complete = self.feed.complete_through(reached)
            self.target.write(ChangeBatch(self.feed.name, self.position, reached, (), complete))
            self._advance(reached, complete, rows=0)
            return
        position = self.target.position(self.feed.name)
        if self.target.traits.keeps_position:
            refuse_if_behind(position, self.position)

    def _is_between_segments(self) -> bool:
        """Whether the position is between segments: in a new spool it may lie within one. What waits for a
        table in the first half of it cannot be told apart: the stream passes the segment first."""
        if not self._aligned:
            ahead = self._manifest.entries(self.position, self._manifest.position)
            self._aligned = not ahead or ahead[0].start >= self.position
        return self._aligned

    def reached(self) -> Lsn:
        """Return how far the stream is, counting what was captured and holds nothing for anybody."""
        captured = self._manifest.position  # before looking: all that committed before it is visible
        pending = self._manifest.next_position(self.position) > self.position
        return self.position if pending else max(self.position, captured)

    def _hand_over(self, state: TableState, reached: Lsn) -> None:
        if self.places.is_lost(state):
            self.tables.copy_anew(state, f"another table is called {state.name} now")
            return
        if self.tables.is_of_another_timeline(state):
            self.tables.copy_anew(state, "the source failed over since it was copied")
            return
        owner = self.places.owner(state.target, state.key.table)
        if owner is not None:
            now = self.places.target_now(owner.key.table)
            if owner.phase is not Phase.ERRORED or now in (None, state.target):
                return  # the other table moves away, or is let go
            self.copy_anew(replace(owner, target=now), f"another table is called {owner.name} now")
        changes = self.changes.waiting(state, self.position)
        if isinstance(changes, CopyAnew):
            if self.streaming_only:
                self.fail(state, CopyRuledOut(changes.why), state.position)
            else:
                self.tables.copy_anew(state, changes.why)
            return
        waiting, after = changes

        def hand_over() -> None:
            self.target.hand_over(state.copy or "", self.transformed(state, waiting, after), reached)

        self._guard(state, hand_over, after)

    def _retry(self, state: TableState, reached: Lsn) -> None:
        """Take a table out of `errored`: it goes on where it stopped, or is copied anew. Under other rules
        than before, rows that are there would have other values."""
        if isinstance(state.error, TransformRefused):
            self.copy_anew(state, "retried with the rules of now")
            return
        if state.position is None:
            self.tables.copy_anew(state, "retried")
            return
        if not is_handed_over(state):
            self._hand_over(state, reached)
            return
        changes = self.changes.waiting(state, self.position)
        if isinstance(changes, CopyAnew):
            self.copy_anew(state, changes.why)
        elif changes[0].rows or not self.following.follow(state, reached):
            self.catch_up(state, *changes, reached)

    def catch_up(self, state: TableState, changes: TableChanges, after: TableState, reached: Lsn) -> None:
        self._guard(
            state, lambda: self.target.catch_up(self.transformed(state, changes, after), reached), after
        )

    def _guard(self, state: TableState, work: Callable[[], None], after: TableState) -> None:
        """Do something for one table: what goes wrong is that table's, unless it is the destination's."""
        self.unfinished.do(partial(self._attempt, state, work, after))

    def _attempt(self, state: TableState, work: Callable[[], None], after: TableState) -> None:
        try:
            work()
        except PenstockError as error:
            if error.scope != "table":
                raise
            position = state.position or self.position
            if state.phase.streams:  # others stand elsewhere, and the destination knows where
                self.unfinished.do(
                    partial(self.target.hold, self.feed.name, state.key.table, position, error)
                )
            self.unfinished.do(partial(self.fail, state, error, position))
        else:
            self.unfinished.then(partial(self.tables.streams, after, "caught up"))

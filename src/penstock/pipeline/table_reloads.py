"""Reloads of single tables, asked for by markers in the stream.

    queued      START was seen, and the batch that it stood in is written
    active      the table is being copied; its changes wait
    exported    the copy is registered, with the changes that it has not; END is yet to be seen
    completed   END was seen; the table's own comment is back

The destination keeps each reload's status, in the transactions that the rest of its records are in, so that a
crash at any point leaves one of these, from which the next start goes on:
- before START: nothing is known of it yet; the marker comes with the stream;
- queued, active: the copy begins, or begins anew, as any interrupted copy does;
- exported: END is set again, which changes nothing;
- completed, but the comment is still the marker: it is put back at the start.
An export of somebody else's goes the same way, but for the copy: from START on the table's changes wait, and
with END those are delivered that his snapshot has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import structlog

from penstock.destinations.protocol import Reload, Reloading, ReloadStatus
from penstock.model import TableId
from penstock.model.ddl import END, START, Marker, marker_text
from penstock.model.errors import AccessDenied, PenstockError, TableBusy
from penstock.model.phases import Phase
from penstock.model.visibility import Visibility
from penstock.pipeline.table_actions import RELOAD
from penstock.pipeline.table_states import TIMELINE
from penstock.postgres import ddl
from penstock.postgres.connection import Connection, connect, explain, wait_briefly
from penstock.state.store import TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream

LOCK_MILLISECONDS = 200
PAUSE = 5.0
"""Seconds until a lock that was not free is asked for again."""


def reload_at_once(stream: Stream, markers: Iterable[Marker]) -> None:
    """Copy the tables anew, for a destination that keeps no records of reloads, with the store for
    witness."""
    for marker in markers:
        state = stream.tables.get(marker.table)
        if marker.action != START or marker.external or state is None:
            continue
        if may_begin(state):
            stream.copy_anew(state, f"reload {marker.export_id}")
        elif state.phase is not Phase.INIT:  # after the copy that is being made
            stream.tables.put(replace(state, detail={**state.detail, RELOAD: True}))


def may_begin(state: TableState) -> bool:
    """Whether a copy of ours can be begun: not while another is being made. It mends what stopped a table,
    and takes the place of somebody else's copy that does not come."""
    return state.phase in (Phase.READY, Phase.ERRORED) or waits_for_export(state)


def waits_for_export(state: TableState) -> bool:
    return state.phase is Phase.FINISHED_COPY and state.snapshot_lsn is None


class TableReloads:
    def __init__(self, stream: Stream, records: Reloading, marker: str) -> None:
        self._stream = stream
        self._source = stream.feed.name
        self._conninfo = stream.feed.spec.conninfo
        self._records = records
        self._marker = marker
        self._open: list[Reload] | None = None
        """None: to be asked for."""
        self._restores = True
        """Whether tables may have markers that are no longer needed."""
        self._again_at: dict[TableId, float] = {}
        """When the comment of a table that was locked may be tried again."""
        self._restore_at = 0.0
        self._log = structlog.get_logger("penstock.pipeline").bind(
            source=self._source, destination=stream.config.name
        )

    @classmethod
    def of(cls, stream: Stream) -> TableReloads | None:
        """Return the reloads at a source that tells of them."""
        records, marker = stream.target.reloads or _NoRecords(), stream.feed.marker
        return cls(stream, records, marker) if marker is not None else None

    def seen(self, markers: Sequence[Marker]) -> None:
        """Take in markers of a batch that is written now."""
        if not markers:
            return
        self._open = None
        for marker in markers:
            state = self._stream.tables.get(marker.table)
            name = str(state.name) if state is not None else str(marker.table)
            self._log.info(f"reload: {marker.action}", table=name, export_id=str(marker.export_id))

    def settle(self) -> None:
        if not self._stream.feed.recording:
            return  # markers are not captured
        asked = self._open is None
        if self._open is None:
            self._open = list(self._records.unfinished(self._source))
            self._restores = True
        if self._restores:
            self._restore_comments()
        for reload in list(self._open):
            state = self._stream.tables.get(reload.table)
            if state is not None:
                self._take_on(reload, state, asked)
            if self._open is None:  # the list changed: the rest comes with the next look
                return

    def _take_on(self, reload: Reload, state: TableState, asked: bool) -> None:
        """`asked`: the status is that of this moment, and not one from before."""
        streams, active = state.phase.streams, reload.status is ReloadStatus.ACTIVE
        if reload.status is ReloadStatus.QUEUED and self._may_begin(reload, state):
            if not reload.external:
                self.cancel_export(state)
            self._records.begin(self._source, reload)
            self._stop(reload, state)
            self._open = None
        elif active and asked and (streams or (not reload.external and may_begin(state))):
            self._stop(reload, state)  # a crash came between the two
        elif active and streams:
            self._open = None  # the copy was handed over
        elif active and reload.external and reload.ended:
            self._go_on(reload, state)
        elif reload.status is ReloadStatus.EXPORTED:
            self._comment(reload.table, lambda connection: self._end(connection, reload))

    def cancel_export(self, state: TableState) -> None:
        """Wait no longer for a copy that somebody else makes."""
        if waits_for_export(state):
            for reload in self._records.unfinished(self._source):
                if (reload.table, reload.external, reload.status) == (
                    state.key.table,
                    True,
                    ReloadStatus.ACTIVE,
                ):
                    self._records.complete(self._source, reload)
            self._open = None

    def _may_begin(self, reload: Reload, state: TableState) -> bool:
        ready = state.phase.streams if reload.external else may_begin(state)
        return ready and self._has_room(reload)

    def _has_room(self, reload: Reload) -> bool:
        active = [
            other for other in self._open or () if other.status is ReloadStatus.ACTIVE and not other.external
        ]
        return reload.external or len(active) < self._records.at_once

    def _stop(self, reload: Reload, state: TableState) -> None:
        """Copy the table anew, or let its changes wait for the copy that somebody else makes."""
        if not reload.external:
            self._stream.copy_anew(state, f"reload {reload.export_id}")
            return
        position, why = self._stream.position, PenstockError("it waits for a copy")
        waiting = replace(
            state,
            phase=Phase.FINISHED_COPY,
            copy=reload.export_id.hex,
            position=position,
            snapshot=None,
            snapshot_lsn=None,
            detail={**state.detail, TIMELINE: self._stream.tables.timeline},
        )
        self._stream.unfinished.do(
            partial(self._stream.target.hold, self._source, reload.table, position, why),
            partial(self._stream.tables.hold_at, waiting, position),
            partial(self._stream.tables.put, waiting, "somebody else copies it"),
        )

    def _go_on(self, reload: Reload, state: TableState) -> None:
        """Let the stream hand over a copy that somebody else made, with the changes that are not in it."""
        if state.phase is Phase.FINISHED_COPY and state.snapshot_lsn is None:
            if self._stream.tables.is_of_another_timeline(state):
                self._refuse(reload, state, "the source failed over during its export")
                return
            try:
                seen = Visibility.parse(reload.snapshot) if reload.snapshot else None
            except ValueError:  # an earlier version took anything
                self._refuse(reload, state, "the snapshot of its export is none")
                return
            detail = {key: value for key, value in state.detail.items() if key != TIMELINE}
            copied = replace(state, snapshot=seen, snapshot_lsn=self._stream.position, detail=detail)
            self._stream.tables.put(copied, "it was copied")

    def _refuse(self, reload: Reload, state: TableState, why: str) -> None:
        """Copy the table ourselves: what somebody else copied cannot be made use of."""
        self._records.complete(self._source, reload)
        self._stream.copy_anew(state, why)
        self._open = None

    def _comment(self, table: TableId, work: Callable[[Connection], None]) -> bool:
        """Set the comment; return whether it was done. It wants a lock, which somebody may have for hours (a
        vacuum, an index that is being made): neither the stream nor another table waits for him, it is tried
        again."""
        if time.monotonic() < self._again_at.get(table, 0.0):
            return False
        try:
            with connect(self._conninfo) as connection:
                wait_briefly(connection, LOCK_MILLISECONDS)
                work(connection)
        except TableBusy as error:
            self._again_at[table] = time.monotonic() + PAUSE
            self._log.info("reload marker waits for a lock", error=str(error))
            return False
        except psycopg.Error as error:
            raise explain(error) from None
        self._again_at.pop(table, None)
        return True

    def _end(self, connection: Connection, reload: Reload) -> None:
        """Mark the end of a reload: in the stream, if the role may comment on the table."""
        more = {"table_name": str(reload.name), "rows_exported": reload.rows}
        text = marker_text(self._marker, END, reload.export_id, more)
        if ddl.set_comment(connection, reload.table, text):
            self._open = [other for other in self._open or () if other is not reload]  # until END is seen
        else:
            why = "the table is not the role's, or it is gone"
            self._log.info(f"reload: END cannot be set, {why}", table=str(reload.name))
            self._records.complete(self._source, reload)
            self._open = None

    def _restore_comments(self) -> None:
        """Give tables of which no reload is open their own comment back. Nothing else depends on that: the
        stream goes on where it fails."""
        if time.monotonic() < max(self._restore_at, min(self._again_at.values(), default=0.0)):
            return
        busy = {reload.table for reload in self._open or ()}
        followed = {state.key.table for state in self._stream.tables} - busy
        try:
            marked = self._marked(followed)
            restored = [self._comment(table, partial(_put_back, table, own)) for table, own in marked]
            self._restores = not all(restored)
        except PenstockError as error:
            self._log.info("comments of tables are not restored", error=str(error))
            self._restores = not isinstance(error, AccessDenied)
            self._restore_at = time.monotonic() + PAUSE

    def _marked(self, tables: Collection[TableId]) -> list[tuple[TableId, str | None]]:
        try:
            with connect(self._conninfo) as connection:
                return ddl.marked(connection, self._marker, tables)
        except psycopg.Error as error:
            raise explain(error) from None


class _NoRecords:
    """Of a destination that keeps none: no reload is open once its marker was seen (`reload_at_once`)."""

    at_once = 0

    def unfinished(self, _source: str) -> Sequence[Reload]:
        return ()

    def begin(self, _source: str, _reload: Reload) -> None: ...

    def complete(self, _source: str, _reload: Reload) -> None: ...


def _put_back(table: TableId, comment: str | None, connection: Connection) -> None:
    ddl.set_comment(connection, table, comment)

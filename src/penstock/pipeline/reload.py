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

from collections.abc import Sequence
from typing import Protocol, cast

import structlog

from penstock.destinations.protocol import Reload, ReloadStatus, Target
from penstock.model import TableId, TableName
from penstock.model.ddl import END, Marker, marker_text
from penstock.model.visibility import Visibility
from penstock.postgres import ddl
from penstock.postgres.connection import connect


class Reloading(Protocol):
    """What a destination does for reloads, beyond what it does as a `Target`."""

    def reloads(self, source: str) -> Sequence[Reload]:
        """Those that are not completed, the oldest first."""

    def begin_reload(self, source: str, reload: Reload) -> None:
        """It is active from now on."""

    def complete_reload(self, source: str, reload: Reload) -> None:
        """Without END having been seen: nobody could set it."""


class Tables(Protocol):
    """What becomes of the tables meanwhile: the stream does it."""

    def name_of(self, table: TableId) -> str: ...

    def is_streaming(self, table: TableId) -> bool: ...

    def reload(self, table: TableId, why: str) -> None:
        """Copy a streaming table anew."""

    def wait(self, table: TableId, copy: str) -> None:
        """Let a streaming table's changes wait for a copy that somebody else makes."""

    def go_on(self, table: TableId, seen: Visibility | None) -> None:
        """The copy is there: go on with what is not in it."""


class Reloads:
    def __init__(
        self, source: str, conninfo: str, target: Target, tables: Tables, marker: str, most: int
    ) -> None:
        self._source = source
        self._conninfo = conninfo
        self._target = cast(Reloading, target)
        self._tables = tables
        self._marker = marker
        self._most = most
        self._open: list[Reload] | None = None
        """None: to be asked for."""
        self._log = structlog.get_logger("penstock.pipeline").bind(source=source, destination=target.name)

    def seen(self, markers: Sequence[Marker]) -> None:
        """These were in a batch that is written now."""
        if not markers:
            return
        self._open = None
        for marker in markers:
            name, export_id = self._tables.name_of(marker.table), str(marker.export_id)
            self._log.info(f"reload: {marker.action}", table=name, export_id=export_id)

    def settle(self) -> None:
        asked = self._open is None
        if self._open is None:
            self._open = list(self._target.reloads(self._source))
            self._restore_comments()
        for reload in list(self._open):
            streaming = self._tables.is_streaming(reload.table)
            if reload.status is ReloadStatus.QUEUED and streaming and self._has_room(reload):
                self._target.begin_reload(self._source, reload)
                self._stop_table(reload)
                self._open = None
            elif reload.status is ReloadStatus.ACTIVE and streaming and asked:
                self._stop_table(reload)  # a crash came between the two
            elif reload.status is ReloadStatus.ACTIVE and streaming:
                self._open = None  # it was handed over
            elif reload.status is ReloadStatus.ACTIVE and reload.external and reload.ended:
                self._tables.go_on(
                    reload.table, Visibility.parse(reload.snapshot) if reload.snapshot else None
                )
            elif reload.status is ReloadStatus.EXPORTED:
                self._end(reload)
            if self._open is None:  # it is another one now: the rest comes with the next look
                return

    def _has_room(self, reload: Reload) -> bool:
        active = [one for one in self._open or () if one.status is ReloadStatus.ACTIVE and not one.external]
        return reload.external or len(active) < self._most

    def _stop_table(self, reload: Reload) -> None:
        if reload.external:
            self._tables.wait(reload.table, reload.export_id.hex)
        else:
            self._tables.reload(reload.table, f"reload {reload.export_id}")

    def _end(self, reload: Reload) -> None:
        """Say that the copy is there: in the stream, where that may be said."""
        more = {"table_name": str(reload.name), "rows_exported": reload.rows}
        text = marker_text(self._marker, END, reload.export_id, more)
        with connect(self._conninfo) as connection:
            told = ddl.set_comment(connection, reload.name, text)
        if told:
            self._open = [one for one in self._open or () if one is not reload]  # until END is seen
        else:
            self._log.info("reload: END cannot be set, the table is not the role's", table=str(reload.name))
            self._target.complete_reload(self._source, reload)
            self._open = None

    def _restore_comments(self) -> None:
        """Give tables of which no reload is open their own comment back."""
        busy = {reload.table for reload in self._open or ()}
        with connect(self._conninfo) as connection:
            for table, name, own in ddl.marked(connection, self._marker):
                if table not in busy:
                    ddl.set_comment(connection, TableName(*name), own)

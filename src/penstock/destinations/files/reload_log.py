"""Reloads of tables in the registry: `reload_operations`, and what `table_state` says of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
import structlog

from penstock.destinations.batch import meant_rows
from penstock.destinations.files.registry import FileEntry, Registry
from penstock.destinations.protocol import Reload, ReloadStatus, TableChanges
from penstock.model import Lsn, TableId, TableName
from penstock.model.ddl import START, Marker, RefusedMarker, text_id
from penstock.postgres.connection import Connection

KEPT = 100
"""Refused markers of a table that are remembered."""

_log = structlog.get_logger("penstock.files")


@dataclass(frozen=True, slots=True)
class ReloadLog:
    registry: Registry
    strategy: str

    def note(self, connection: Connection, markers: Iterable[Marker], names: Mapping[TableId, str]) -> None:
        """Record markers of the stream. One that comes a second time changes nothing; an END without
        its START, or of a table that is not followed, is ignored."""
        for marker in markers if self.registry.enabled else ():
            if marker.action == START and marker.table in names:
                self._queue(connection, marker, names)
            elif marker.action != START:
                self._ended(connection, marker)

    def _queue(self, connection: Connection, marker: Marker, names: Mapping[TableId, str]) -> None:
        connection.execute(
            self.registry.sql(
                """
                insert into {schema}.reload_operations (export_id, table_name, table_id,
                    start_marker_lsn, status, external, delta_strategy)
                values (%s, %s, %s, %s, 'queued', %s, %s) on conflict do nothing
                """
            ),
            (
                marker.export_id,
                names[marker.table],
                marker.table,
                str(marker.lsn),
                marker.external,
                self.strategy,
            ),
        )
        taken = connection.execute(
            self.registry.sql(
                "select from {schema}.reload_operations where export_id = %s and table_id <> %s"
            ),
            (marker.export_id, marker.table),
        ).fetchone()
        if taken is not None:
            id = text_id(f"{marker.lsn}/{marker.export_id}", marker.table)
            reason = "its `export_id` is that of another table's reload"
            self.refuse(connection, [RefusedMarker(marker.lsn, marker.table, id, reason)], names)

    def refuse(
        self, connection: Connection, refused: Iterable[RefusedMarker], names: Mapping[TableId, str]
    ) -> None:
        """Record comments that begin as markers and are none, each once; of a table the last `KEPT`."""
        for marker in refused if self.registry.enabled else ():
            if marker.table not in names:
                continue
            values = {
                "id": marker.id,
                "name": names[marker.table],
                "table": marker.table,
                "lsn": str(marker.lsn),
            }
            connection.execute(
                self.registry.sql(
                    """
                    insert into {schema}.reload_operations (export_id, table_name, table_id,
                        start_marker_lsn, status, external, delta_strategy, reason, completed_at)
                    values (%(id)s, %(name)s, %(table)s, %(lsn)s, 'refused', false, %(strategy)s, %(reason)s,
                            now())
                    on conflict do nothing
                    """
                ),
                values | {"strategy": self.strategy, "reason": marker.reason},
            )
            connection.execute(
                self.registry.sql(
                    """
                    delete from {schema}.reload_operations where export_id in (
                        select export_id from {schema}.reload_operations
                        where table_id = %(table)s and status = 'refused'
                        order by start_marker_lsn desc, export_id offset %(kept)s)
                    """
                ),
                values | {"kept": KEPT},
            )

    def _ended(self, connection: Connection, marker: Marker) -> None:
        """Complete our reload at END, if it is exported; let somebody else's go on. Only the marker of the
        reload's own table counts: everybody can read the others' ids."""
        connection.execute(
            self.registry.sql(
                """
                update {schema}.reload_operations set
                    end_marker_lsn = coalesce(end_marker_lsn, %(lsn)s), snapshot = %(snapshot)s,
                    status = case when external then status else 'completed' end,
                    completed_at = case when not external then now() end
                where export_id = %(id)s and table_id = %(table)s
                  and (external and status <> 'refused' or status = 'exported')
                """
            ),
            {
                "lsn": str(marker.lsn),
                "snapshot": marker.snapshot,
                "id": marker.export_id,
                "table": marker.table,
            },
        )
        self._clear(connection, marker.export_id)

    def open(self, connection: Connection) -> list[Reload]:
        if not self.registry.enabled:
            return []
        rows = connection.execute(
            self.registry.sql(
                """
                select export_id, table_id, table_name, status, external, end_marker_lsn is not null,
                       snapshot, coalesce(rows_exported, 0)
                from {schema}.reload_operations where status in ('queued', 'active', 'exported')
                order by start_marker_lsn, created_at
                """
            )
        ).fetchall()
        return [
            Reload(id, TableId(table), TableName.parse(name), ReloadStatus(status), *rest)
            for id, table, name, status, *rest in rows
        ]

    def begin(self, connection: Connection, reload: Reload) -> None:
        self._set(connection, reload.export_id, ReloadStatus.ACTIVE)
        connection.execute(
            self.registry.sql(
                """
                update {schema}.table_state t
                set current_mode = 'reloading', reload_export_id = o.export_id,
                    reload_start_lsn = o.start_marker_lsn, updated_at = now()
                from {schema}.reload_operations o
                where o.export_id = %s and t.table_id = o.table_id
                """
            ),
            (reload.export_id,),
        )

    def exported(
        self, connection: Connection, changes: TableChanges, rows: int, delta: Sequence[FileEntry]
    ) -> None:
        """Record that the copy of a reload is registered, with those changes that came meanwhile
        and are not in it. That completes a reload that somebody else exported."""
        if not self.registry.enabled:
            return
        table = changes.delivery.id
        row = connection.execute(
            self.registry.sql(
                """
                update {schema}.reload_operations set
                    status = case when external then 'completed' else 'exported' end,
                    completed_at = case when external then now() end, rows_exported = %s
                where table_id = %s and status = 'active' returning export_id, start_marker_lsn::text
                """
            ),
            (rows, table),
        ).fetchone()
        if row is None:
            return
        self._clear(connection, row[0])
        if self.strategy == "validate":
            self._validate(connection, changes, row[0], Lsn.parse(row[1]), sum(file.rows for file in delta))

    def _validate(
        self, connection: Connection, changes: TableChanges, id: uuid.UUID, start: Lsn, written: int
    ) -> None:
        """Count what came since START, what of it is in the copy, and what was written."""
        came = unseen = 0
        for run in changes.runs:
            for _, rows in meant_rows(replace(changes, copied=None), run):
                since = rows.filter(pc.greater_equal(rows["commit_lsn"], start.value))
                came += len(since)
                seen = changes.copied.sees(since["xid"].to_numpy()) if changes.copied else np.zeros(0)
                unseen += len(since) - int(seen.sum())
        connection.execute(
            self.registry.sql(
                "update {schema}.reload_operations set delta_rows = %s, delta_applied = %s"
                " where export_id = %s"
            ),
            (came, unseen, id),
        )
        counts = {"came": came, "in_the_copy": came - unseen, "not_in_it": unseen, "lines": written}
        tell = _log.info if written >= unseen else _log.error  # a change of a key is two lines
        tell("reload: the changes meanwhile", table=str(changes.delivery.table.name), **counts)

    def complete(self, connection: Connection, reload: Reload) -> None:
        self._set(connection, reload.export_id, ReloadStatus.COMPLETED)
        self._clear(connection, reload.export_id)

    def forget(self, connection: Connection, table: TableId) -> None:
        """Forget a table that is no longer followed."""
        if not self.registry.enabled:
            return
        connection.execute(
            self.registry.sql(
                "delete from {schema}.reload_operations where table_id = %s and status <> 'completed'"
            ),
            (table,),
        )

    def _set(self, connection: Connection, id: uuid.UUID, status: ReloadStatus) -> None:
        connection.execute(
            self.registry.sql(
                "update {schema}.reload_operations set status = %s,"
                " completed_at = case when %s = 'completed' then now() end where export_id = %s"
            ),
            (status.value, status.value, id),
        )

    def _clear(self, connection: Connection, id: uuid.UUID) -> None:
        connection.execute(
            self.registry.sql(
                """
                update {schema}.table_state t set reload_export_id = null, reload_start_lsn = null
                from {schema}.reload_operations o
                where o.export_id = %s and t.reload_export_id = o.export_id and o.status = 'completed'
                """
            ),
            (id,),
        )

"""Reloads of tables as the pipeline drives them: see `pipeline/table_reloads.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.destinations.files import unfinished_copies
from penstock.destinations.files.options import ReloadOptions
from penstock.destinations.files.reload_log import ReloadLog
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import Storage
from penstock.destinations.protocol import Reload


class FilesReloading:
    """A `Reloading`."""

    def __init__(
        self, records: Mapping[str, SourceRecords], storage: Storage, options: ReloadOptions
    ) -> None:
        self.at_once = options.max_concurrent
        self._strategy = options.delta_strategy
        self._records = records
        self._storage = storage

    def log(self, records: SourceRecords) -> ReloadLog:
        return ReloadLog(records.registry, self._strategy)

    def unfinished(self, source: str) -> Sequence[Reload]:
        records = self._records[source]
        with records.transaction() as connection:
            return self.log(records).open(connection)

    def begin(self, source: str, reload: Reload) -> None:
        """Record that the reload is active. Somebody else's copy counts as finished: we make none."""
        records = self._records[source]
        with records.transaction() as connection:
            self.log(records).begin(connection, reload)
            if reload.external:
                unfinished_copies.abandon(connection, records.stream, reload.table, self._storage)
                unfinished_copies.begin(connection, records.stream, reload.table, reload.export_id.hex, "")
                unfinished_copies.finish(connection, reload.export_id.hex, None)

    def complete(self, source: str, reload: Reload) -> None:
        records = self._records[source]
        with records.transaction() as connection:
            self.log(records).complete(connection, reload)

"""Files that go: those that an error or a crash left behind unregistered, and those that are old enough."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from penstock.destinations import copy_records
from penstock.destinations.files.layout import Layout
from penstock.destinations.files.reload_log import ReloadLog
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import Storage
from penstock.model import TableName

_log = structlog.get_logger("penstock.files")


def sweep(storage: Storage, layout: Layout, records: SourceRecords, reloads: ReloadLog) -> None:
    """Remove what an interrupted batch wrote: folders newer than the newest one that is registered, or, of a
    table's first copy, than its own. Of a table of which there is neither all is left alone: what is there
    may be from before our time. So it is where somebody else makes a copy, until he has registered it."""
    with records.transaction() as connection:
        ledger = records.ledger(connection)
        ledger.lock()  # a killed process may have a commit on its way
        kept = set(copy_records.set_aside(connection, records.stream))
        exported = {reload.table for reload in reloads.open(connection) if reload.external}
        theirs = {
            place for id in exported for place in copy_records.set_aside(connection, records.stream, id)
        }
        tables = [TableName.parse(name) for id, name in ledger.names().items() if id not in exported]
        newest = [(table, records.registry.last(connection, table).batch) for table in tables]
    registered = [layout.folder(records.stream.source, table, batch) for table, batch in newest if batch]
    beyond = {_above(folder): folder for folder in [*sorted(kept - theirs), *registered]}
    for above, newest_folder in beyond.items():
        for folder in storage.folders(above):
            if folder > newest_folder and folder not in kept and layout.is_batch(folder):
                _log.info("removed what an interrupted batch left", folder=storage.shown(folder))
                storage.remove(storage.names(folder))


def _above(folder: str) -> str:
    return folder.rpartition("/")[0]


def remove_drafts(storage: Storage, records: SourceRecords) -> None:
    """Remove what an attempt before this one wrote and did not come into the registry, while that is still
    newer than anything else. Whether a transaction committed whose answer was lost is waited for."""
    if not records.drafts:
        return
    shown = {storage.shown(folder): folder for folder in records.drafts}
    with records.transaction() as connection:
        records.ledger(connection).lock()
        left = records.registry.without_files(connection, list(shown))
    remove_folders(storage, [shown[folder] for folder in left])
    records.drafts.clear()


def remove_folders(storage: Storage, folders: Iterable[str]) -> None:
    for folder in folders:
        storage.remove(storage.names(folder))


def expire(storage: Storage, records: SourceRecords, days: float) -> None:
    """Remove files that are older than that and that no consumer has still to read. They leave the registry
    first: a crash in between leaves files that nobody sees, which are removed the next time."""
    registry = records.registry
    with records.transaction() as connection:
        registry.expire(connection, days)
        expired = registry.to_be_removed(connection)
    if not expired:
        return
    base = storage.shown("")
    ours = {path: path.removeprefix(base) for path in expired if path.startswith(base)}
    ours = {path: below for path, below in ours.items() if "/" in below and storage.holds(below)}
    storage.remove(ours.values())
    with records.transaction() as connection:
        registry.removed(connection, expired)
    _log.info("removed old files", files=len(ours))
    if strange := [path for path in expired if path not in ours]:
        message = "files were to be removed that this destination did not write; they were left alone"
        _log.warning(message, files=len(strange), first=strange[0])

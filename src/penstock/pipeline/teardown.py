"""Taking a pipeline away: what it made for itself at the source, in the spool, in the store and at the
destinations. The tables that were delivered stay as they are.

The order: the slot first, since it keeps WAL on somebody's server; the state last, so that a teardown that
was interrupted can be run again and still knows what there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.capture.launch import folder_of, spec_of, spool_of
from penstock.capture.spool_identity import find, refuse_if_captured
from penstock.config import Config, SourceConfig
from penstock.destinations.plugin import type_of
from penstock.model.errors import WrongSpool
from penstock.postgres import ddl, publication, slot
from penstock.postgres.connection import connect
from penstock.spark.session import LOG
from penstock.state.store import Store


def plan(config: Config) -> Iterator[str]:
    for source in config.sources:
        yield f"source {source.name}: slot {source.slot_name}, publication {source.publication_name} if ours"
        yield f"source {source.name}: spool {spool_of(config, source)}"
    for destination in config.destinations:
        yield f"destination {destination.name}: Penstock's own records, not the data"
    yield f"state of the pipeline {config.pipeline}"


def remove(config: Config) -> Iterator[str]:
    with Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True) as store:
        for source in config.sources:
            spool, another = _spool(config, source)
            with connect(source.conninfo()) as connection:
                if slot.drop(connection, source.slot_name):
                    yield f"dropped slot {source.slot_name}"
                if publication.drop(connection, source.publication_name):
                    yield f"dropped publication {source.publication_name}"
                if source.ddl_capture != "off" and ddl.remove(connection):
                    yield "dropped the event triggers that record schema changes"
                elif ddl.is_installed(connection):
                    yield (
                        "left the event triggers that record schema changes: another publication has them, "
                        "or the role may not drop capture_ddl_trigger and capture_ddl_drop_trigger"
                    )
            if another is not None:
                yield f"left spool {spool}: {another.reason}"
            elif spool.exists():
                shutil.rmtree(spool)
                yield f"removed spool {spool}"
        for destination in config.destinations:
            type_of(destination).make(config, destination).tear_down()
            yield f"removed the records at {destination.name}"
        store.erase()
        yield f"removed the state of {config.pipeline}"
    _remove_folder(config)


def _spool(config: Config, source: SourceConfig) -> tuple[Path, WrongSpool | None]:
    """Return where the spool is, and, if what is there is not ours to remove, why."""
    spec = spec_of(config, source)
    try:
        spool = find(spec)
    except WrongSpool as error:
        return spec.spool, error
    refuse_if_captured(spool)
    return spool, None


def _remove_folder(config: Config) -> None:
    """Remove the pipeline's own folder, unless there is something else in it."""
    folder = folder_of(config)
    (folder / LOG).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()

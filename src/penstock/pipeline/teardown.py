"""Taking a pipeline away: what it made for itself at the source, in the spool, in the store and at the
destinations. The tables that were delivered stay as they are.

The order: the slot first, since it keeps WAL on somebody's server; the state last, so that a teardown that
was interrupted can be run again and still knows what there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from penstock.capture.launch import spool_of
from penstock.config import Config
from penstock.destinations.make import make
from penstock.model.errors import SpoolInUse
from penstock.postgres import ddl, publication, slot
from penstock.postgres.connection import connect
from penstock.spool.writer import captured_by
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
            spool = spool_of(config, source)
            holder = captured_by(spool)
            if holder is not None:
                raise SpoolInUse(f"process {holder} captures into this spool", file=spool)
            with connect(source.conninfo()) as connection:
                if slot.drop(connection, source.slot_name):
                    yield f"dropped slot {source.slot_name}"
                if publication.drop(connection, source.publication_name):
                    yield f"dropped publication {source.publication_name}"
                if source.ddl_capture != "off" and ddl.remove(connection):
                    yield "dropped the event triggers that record schema changes"
            if spool.exists():
                shutil.rmtree(spool)
                yield f"removed spool {spool}"
        for destination in config.destinations:
            make(config, destination).tear_down()
            yield f"removed the records at {destination.name}"
        store.erase()
        yield f"removed the state of {config.pipeline}"

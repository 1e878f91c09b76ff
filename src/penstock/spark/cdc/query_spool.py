"""The spool that a query reads, and the capture that fills it.

With the option `spool` the folder is given and somebody else captures. With `config` the configuration names
it, and the query sees to it that somebody captures for as long as it runs. Used beside the driver only: what
capture needs to know includes the password. Executors import this module all the same, with the reader; what
only configurations need is imported where they are used.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import TableName, TableSchema
from penstock.spark.cdc.options import CdcOptions
from penstock.spool.identity import spool_exists
from penstock.spool.manifest import Manifest
from penstock.spool.writer import is_captured

if TYPE_CHECKING:
    from penstock.capture.spec import CaptureSpec
    from penstock.config import SourceConfig

INTERVAL = 1.0
"""Seconds between two looks at the capture."""
PATIENCE = 30.0
"""Seconds that a capture, just started by somebody else, may take to make its spool."""


class QuerySpool:
    def __init__(self, options: CdcOptions) -> None:
        self._options = options
        self._looked = 0.0

    @cached_property
    def _configured(self) -> tuple[SourceConfig, CaptureSpec] | None:
        """The source and its capture. This query becomes a consumer when it begins to read."""
        path = self._options.config
        if path is None:
            return None
        from penstock.capture.launch import spec_of
        from penstock.config import load

        config = load(path)
        if config.mapping == "database":
            from penstock.state.mapping_records import mapped

            mapped(config)
        source = config.source(self._options.source)
        spec = spec_of(config, source)
        return source, replace(spec, spool=spec.spool.absolute())

    @property
    def path(self) -> Path:
        if self._configured is not None:
            return self._configured[1].spool
        assert self._options.spool is not None
        return self._options.spool

    def open(self) -> Manifest:
        self.look_after()
        until = time.monotonic() + PATIENCE
        while is_captured(self.path) and not spool_exists(self.path) and time.monotonic() < until:
            time.sleep(0.02)
        return Manifest.open(self.path)

    def look_after(self) -> bool:
        """Make sure, now and then, that somebody captures; raise what keeps capture from going on.

        Return whether it was time to look.
        """
        if time.monotonic() - self._looked < INTERVAL:
            return False
        self._looked = time.monotonic()
        if self._configured is not None and self._options.capture:
            from penstock.capture.launch import ensure

            source, spec = self._configured
            ensure(spec, source)
        return True

    def catch_up(self, manifest: Manifest) -> None:
        """Wait until all that has committed by now is in the spool; needs a configuration to know by when."""
        if self._configured is None or not self._options.capture:
            return
        from penstock.capture.heartbeat import mark
        from penstock.postgres.connection import connect

        _, spec = self._configured
        with connect(spec.conninfo) as connection:
            marked = mark(connection)
        while manifest.position <= marked:
            self.look_after()
            time.sleep(0.02)

    def describe(self, table: TableName) -> TableSchema | None:
        """Return a table of which nothing was captured yet, as it will be sent, by the source's catalog."""
        if self._configured is None:
            return None
        from penstock.capture.schemas import published, schema_of
        from penstock.postgres.connection import connect
        from penstock.postgres.types import TypeCatalog

        _, spec = self._configured
        with connect(spec.conninfo) as connection:
            types = TypeCatalog(lambda: connection)
            described = published(connection, spec.publication)
            schemas = (schema_of(relation, 0, types) for relation in described)
            return next((schema for schema in schemas if schema.name == table), None)

"""Where a pipeline that is driven by hand delivers to, and how what has arrived is looked at.

A table in PostgreSQL is compared as it is. Files are read as a consumer reads them, who knows the registry
and nothing else: one that follows all the while and, at the end, one that begins then.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from penstock.changes import unreadable
from penstock.destinations.files.storage import OWNER
from penstock.destinations.files.target import FilesTarget
from penstock.destinations.postgres.target import PostgresTarget
from penstock.model import TableName, TableSchema
from penstock.model.errors import ValueRefused
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.pipeline.running import difference, to_postgres

TABLES = "t, u, v, elsewhere"
LEDGER = "penstock.streams, penstock.tables, penstock.copies, penstock.copied, penstock.locks"


class Delivered(Protocol):
    target: type[Any]
    ddl_capture: str

    def configuration(self, **other: Any) -> dict[str, Any]:
        """Of the destination; it is called `copy`."""

    def clear(self) -> None:
        """As if nothing had ever been delivered."""

    def difference(self, tables: Sequence[TableName]) -> str:
        """What is not as at the source, or not done yet; empty where all is."""

    def difference_from_scratch(self, tables: Sequence[TableName]) -> str:
        """The same, for somebody who begins to look now."""

    def refuse(self, wanted: bool) -> None:
        """Take no row of `t` with the note 'bad', or take them again."""

    def left_over(self) -> list[str]:
        """What nobody needs any more."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Whatever is needed to refuse a row."""


class InPostgres:
    target = PostgresTarget
    ddl_capture = "off"

    def __init__(self, source: Database, database: Database, _folder: Path) -> None:
        self._source = source
        self._database = database

    def configuration(self, **other: Any) -> dict[str, Any]:
        return to_postgres(self._database, **other)

    def clear(self) -> None:
        self._database.execute("drop schema if exists penstock cascade", f"drop table if exists {TABLES}")

    def difference(self, tables: Sequence[TableName]) -> str:
        return difference(self._source, self._database, tables)

    difference_from_scratch = difference

    def refuse(self, wanted: bool) -> None:
        added = "add constraint good check (note <> 'bad')"
        self._database.execute(f"alter table t {added if wanted else 'drop constraint good'}")

    def left_over(self) -> list[str]:
        aside = r"select relname from pg_class where relname like 'copy\_%' and relkind = 'r'"
        return [
            name for (name,) in self._database.query(f"{aside} union all select copy from penstock.copies")
        ]

    def install(self, patch: pytest.MonkeyPatch) -> None: ...


class InFiles:
    target = FilesTarget
    ddl_capture = "on"

    def __init__(self, source: Database, database: Database, folder: Path) -> None:
        """The consumer rebuilds the tables in the database."""
        self._source = source
        self._database = database
        self._base = folder / "files"
        self._consumer = Consumer(source, database)
        self._refuses = False

    def configuration(self, **other: Any) -> dict[str, Any]:
        return {"name": "copy", "type": "files", "base_path": str(self._base), **other}

    def clear(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)
        self._source.execute(
            "drop schema if exists cdc_registry cascade",
            f"drop view if exists penstock.progress; drop table if exists {LEDGER}",
        )
        self._refuses = False
        self._begin()

    def _begin(self) -> None:
        self._database.execute(f"drop table if exists {TABLES}")
        self._consumer = Consumer(self._source, self._database)

    def difference(self, tables: Sequence[TableName]) -> str:
        if self._source.query("select to_regclass('cdc_registry.removals')") == [(None,)]:
            return "there is no registry"
        reloads = "select status from cdc_registry.reload_operations where status <> 'completed'"
        if waiting := self._source.query(reloads):
            return f"reloads: {waiting}"
        if marked := self._source.query("select description from pg_description where description ~ 'CDC_'"):
            return f"comments: {marked}"
        self._consumer.run()
        return difference(self._source, self._database, tables)

    def difference_from_scratch(self, tables: Sequence[TableName]) -> str:
        self._begin()
        return self.difference(tables)

    def left_over(self) -> list[str]:
        registered = {path for (path,) in self._source.query("select file_path from cdc_registry.file_log")}
        files = {str(file) for file in self._base.rglob("*") if file.is_file()}
        copies = [copy for (copy,) in self._source.query("select copy from penstock.copies")]
        return sorted(files - registered - {str(self._base / OWNER)}) + copies

    def refuse(self, wanted: bool) -> None:
        self._refuses = wanted

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """All that files do not take are bytes that are no text, which only old servers have."""
        real = unreadable.refuse

        def refuse(rows: pa.RecordBatch, table: TableSchema) -> None:
            if self._refuses and any("bad" in (row or ()) for row in rows["after"].to_pylist()):
                raise ValueRefused("a value is no text", table=table.name)
            real(rows, table)

        patch.setattr(unreadable, "refuse", refuse)


KINDS: dict[str, type[InPostgres] | type[InFiles]] = {"postgres": InPostgres, "files": InFiles}

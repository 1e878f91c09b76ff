"""Where the demo's pipeline delivers to, and what is there in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import yaml
from pyarrow import csv

from penstock.demo import shop
from penstock.demo.proof import Checksum, RebuiltTable, checksums
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.events import Row
from penstock.postgres.connection import connect


class End(Protocol):
    what: str
    """In words, for people."""

    @property
    def files(self) -> Path | None:
        """Return the folder with what is delivered, if there is one to look into."""

    def start(self) -> str:
        """Make it ready; return its lines in the configuration, below its name."""

    def checksums(self, source: str) -> Mapping[TableName, Checksum]:
        """Return the checksums of the shop's tables as they are there; the source may be asked about them."""

    def follows(self) -> bool:
        """Tell whether it needs nothing more of the pipeline but changes."""

    def stop(self) -> None: ...


class PostgresEnd:
    what = "a second PostgreSQL"
    files = None

    def __init__(self, folder: Path) -> None:
        self._server = PostgresServer(folder / "warehouse")

    def start(self) -> str:
        self._server.start()
        return f"type: postgres\n    dsn: {self._server.url()}"

    def checksums(self, source: str) -> Mapping[TableName, Checksum]:  # noqa: ARG002
        with connect(self._server.dsn()) as connection:
            return checksums(connection, shop.TABLES)

    def follows(self) -> bool:
        return True

    def stop(self) -> None:
        self._server.stop()


class FilesEnd:
    """What the files say is what somebody finds out who follows the registry and reads them."""

    what = "files"

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"

    def start(self) -> str:
        return f"type: files\n    base_path: {self.files}"

    def checksums(self, source: str) -> Mapping[TableName, Checksum]:
        with connect(source) as connection:
            rows = connection.execute(
                "select table_name, file_type, file_path from cdc_registry.file_log"
                " order by table_name, end_lsn"
            ).fetchall()
        files: dict[str, list[tuple[str, str]]] = {str(table): [] for table in shop.TABLES}
        for table, kind, path in rows:
            files.setdefault(table, []).append((kind, path))
        return {table: Checksum.of(rebuilt(files[str(table)]).rows()) for table in shop.TABLES}

    def follows(self) -> bool:
        return True

    def stop(self) -> None: ...


def rebuilt(files: list[tuple[str, str]]) -> RebuiltTable:
    """Rebuild a table from its files, in their order. (The shop's schema does not change.)"""
    table = RebuiltTable()
    for kind, path in files:
        if kind == "schema":
            schema = yaml.safe_load(Path(path).read_text())
            table = RebuiltTable()
            table.become(tuple(c["name"] for c in schema["columns"]), tuple(schema["metadata"]["key"]))
        elif kind == "full_reload":
            for row in _rows(path):
                table.put(row)
        elif kind == "streaming":
            for row in _rows(path):
                _apply(table, row)
    return table


def _apply(table: RebuiltTable, row: Row) -> None:
    op, unchanged, values = row[0], row[6], row[7:]
    if op == "T":
        table.buckets.clear()
    old = table.take(table.key_of(values)) if op in ("U", "D") else None
    if op in ("I", "U"):
        names = (unchanged or "{}")[1:-1].replace('"', "").split(",")
        kept = old if old is not None else values
        table.put(tuple(k if c in names else v for c, v, k in zip(table.columns, values, kept, strict=True)))


def _rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file. NULL is nothing at all, an empty string is quoted."""
    names = csv.open_csv(path, csv.ReadOptions(block_size=1 << 20)).schema.names
    table = csv.read_csv(
        pa.input_stream(path, compression="detect"),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    return zip(*(column.to_pylist() for column in table.columns), strict=True)

"""`penstock snowflake`, as it is run: of the newest full copy in the registry, with errors as sentences."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from penstock.destinations.files.registry import FileEntry, Registry
from penstock.destinations.files.storage import Storage
from penstock.model import Lsn, TableId, TableName
from penstock.postgres.connection import connect
from tests.bed import Database

USERS = TableName("public", "users")
PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def snowflake(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, "snowflake", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def write_config(folder: Path, dsn: str, *destinations: dict[str, object]) -> Path:
    path = folder / "shop.yml"
    document = {
        "pipeline": "shop",
        "sources": [{"name": "eu", "dsn": dsn}],
        "destinations": list(destinations),
        "spool": {"path": str(folder / "spool")},
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def to_files(tmp_path: Path) -> dict[str, object]:
    registry = {"schema": "lake_registry"}
    return {"name": "lake", "type": "files", "base_path": str(tmp_path / "lake"), "file_registry": registry}


@pytest.fixture
def config(database: Database, tmp_path: Path, to_files: dict[str, object]) -> Path:
    return write_config(tmp_path, database.dsn, to_files)


class Exported:
    """A registry and its files, as the destination makes them."""

    def __init__(self, database: Database, folder: Path, base: str | None = None) -> None:
        self._database = database
        (folder / "lake").mkdir()
        self._storage = Storage(base or str(folder / "lake"), "lake")
        self._registry = Registry("lake_registry", "shop", "lake")
        with connect(database.dsn) as connection:
            self._registry.create(connection)
            self._registry.expect(connection, {TableId(1): USERS})

    def copy(self, lsn: int, *columns: str) -> None:
        """A full copy of `users` with these columns, the first of which is the key, and a file of changes."""
        described = {
            "table": {"schema": "public", "name": "users", "row_count": 0},
            "columns": [{"name": column, "type": "text"} for column in columns],
            "metadata": {"snapshot_lsn": str(Lsn(lsn)), "key": [columns[0]]},
        }
        batch = datetime(2026, 1, 31, 12, 0, lsn)
        entries = []
        for type, name in (("schema", "schema.yml"), ("full_reload", "full_reload.csv.gz")):
            text = yaml.safe_dump(described).encode()
            written = self._storage.write(f"public.users/{lsn}/{name}", [text])
            entries.append(FileEntry(USERS, batch, type, written, Lsn(lsn), Lsn(lsn)))
        written = self._storage.write(f"public.users/{lsn}9/streaming.csv.gz", [b""])
        entries.append(FileEntry(USERS, batch, "streaming", written, Lsn(lsn), Lsn(lsn)))
        self._register(entries)

    def ddl(self, lsn: int, text: bytes) -> None:
        written = self._storage.write(f"public.users/{lsn}/ddl.txt", [text])
        self._register(
            [FileEntry(USERS, datetime(2026, 1, 31, 12, 1, lsn), "ddl", written, Lsn(lsn), Lsn(lsn))]
        )

    def _register(self, entries: list[FileEntry]) -> None:
        with connect(self._database.dsn) as connection:
            shown = [self._storage.shown(entry.file.path) for entry in entries]
            self._registry.registered(self._registry.register(connection, entries, shown))


@pytest.fixture
def exported(database: Database, tmp_path: Path) -> Exported:
    return Exported(database, tmp_path)


def test_the_script_is_of_the_newest_full_copy(config: Path, tmp_path: Path, exported: Exported) -> None:
    exported.copy(1, "id", "old")
    exported.copy(5, "id", "new")
    done = snowflake(config, "users")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"new" varchar' in done.stdout
    assert '"old"' not in done.stdout
    assert f"put 'file://{tmp_path}/lake/public.users/59/streaming.csv.gz'" in done.stdout
    assert "public.users/19/" not in done.stdout
    assert "insert into lake_registry.consumers" in done.stdout


def test_it_ends_where_the_columns_change(config: Path, exported: Exported) -> None:
    exported.copy(1, "id")
    exported.ddl(20, b"-- an index was made\n")
    assert "other columns" not in snowflake(config, "users").stdout
    exported.ddl(21, b'alter table "public"."users" drop column "x";\n')
    assert "other columns: public.users/21/ddl.txt says which" in snowflake(config, "users").stdout


def test_a_folder_by_its_uri_is_a_folder(
    database: Database, tmp_path: Path, to_files: dict[str, object]
) -> None:
    base = f"file://{tmp_path}/lake"
    Exported(database, tmp_path, base).copy(1, "id")
    done = snowflake(write_config(tmp_path, database.dsn, to_files | {"base_path": base}), "users")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"put 'file://{tmp_path}/lake/public.users/1/full_reload.csv.gz'" in done.stdout


def test_a_table_that_is_not_there_is_said_with_those_that_are(config: Path, exported: Exported) -> None:
    exported.copy(1, "id")
    done = snowflake(config, "public.user")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the registry has no files of public.user. Tables with files: public.users\n"
    )


def test_nothing_exported_yet(config: Path, database: Database, tmp_path: Path) -> None:
    done = snowflake(config, "users")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: nothing was exported yet: there is no registry lake_registry. "
        "Run the pipeline: penstock run\n"
    )
    Exported(database, tmp_path)
    done = snowflake(config, "users")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: the registry has no full copy of the table (table public.users). Wait"
    )


def test_destinations_that_are_none(database: Database, tmp_path: Path, to_files: dict[str, object]) -> None:
    done = snowflake(write_config(tmp_path, database.dsn), "users")
    assert (done.returncode, done.stderr) == (
        2,
        "error: there is no destination of files. Add one: `type: files`\n",
    )
    other = to_files | {"name": "pond", "file_registry": {"enabled": False}}
    config = write_config(tmp_path, database.dsn, to_files, other)
    done = snowflake(config, "users")
    assert (done.returncode, done.stderr) == (
        2,
        "error: there are several destinations of files. Choose by --destination: lake, pond\n",
    )
    done = snowflake(config, "users", "--destination", "sea")
    assert (done.returncode, done.stderr) == (
        2,
        "error: there is no destination of files called sea. Destinations of files: lake, pond\n",
    )
    done = snowflake(config, "users", "--destination", "pond")
    assert done.returncode == 2
    assert "are not registered (destination pond)" in done.stderr


def test_a_source_that_does_not_answer(tmp_path: Path, to_files: dict[str, object]) -> None:
    config = write_config(tmp_path, "postgresql://cdc:hush@127.0.0.1:1/shop", to_files)
    done = snowflake(config, "users")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "hush" not in done.stderr
    assert "Traceback" not in done.stderr

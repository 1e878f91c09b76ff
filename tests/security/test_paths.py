"""Paths that others may have written: none leads out of the base path, whatever is to be done with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.snowflake import _export
from penstock.config import load
from penstock.destinations.files.cleanup import expire
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.registry import Registry
from penstock.destinations.files.source_records import SourceRecords
from penstock.destinations.files.storage import OWNER, Storage
from penstock.destinations.ledger import StreamId
from penstock.model import TableName
from penstock.model.errors import ConfigError, StorageFailed
from tests.bed import Database
from tests.pipeline.running import configuration

USES: dict[str, Callable[[Storage, str], object]] = {
    "write": lambda storage, path: storage.write(path, [b"x"]),
    "put": lambda storage, path: storage.put(path, [b"x"]),
    "read": lambda storage, path: b"".join(storage.read(path)),
    "exists": Storage.exists,
    "names": Storage.names,
    "folders": Storage.folders,
    "remove": lambda storage, path: storage.remove([path]),
    "concatenate": lambda storage, path: storage.concatenate("new", [], [path]),
}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A base path beside which something lies that is not ours, and with links that lead there."""
    base = tmp_path / "lake"
    (base / "public.t").mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("precious")
    (base / "linked").symlink_to(tmp_path / "precious")
    (base / "public.t" / "file").symlink_to(tmp_path / "precious" / "file")
    (base / "circle").symlink_to("circle")
    return Storage(str(base), "lake")


# A test of an attack may succeed: none of these leads out of the test's own folder.
ABSOLUTE = "absolute"
OUTSIDE = [
    "../precious/file",
    "public.t/../../precious/file",
    "linked/file",
    "linked/../../precious/file",
    "public.t/file",
    "{absolute}",  # never one of the machine's own files: without the check it would be written
    "..",
    "circle/file",
    "public.t/\0",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("use", USES)
def test_a_path_that_leads_out_of_the_base_path_is_refused(
    storage: Storage, tmp_path: Path, use: str, path: str
) -> None:
    with pytest.raises(StorageFailed, match="the path leads out of the base path"):
        USES[use](storage, path.replace("{absolute}", str(tmp_path / "precious" / "file")))
    assert (tmp_path / "precious" / "file").read_text() == "precious"
    assert [one.name for one in (tmp_path / "precious").iterdir()] == ["file"]


@pytest.mark.parametrize("path", ["../file", "a/../../file", "/file", "a/.."])
@pytest.mark.parametrize("use", USES)
def test_neither_does_one_of_an_object_store(use: str, path: str) -> None:
    """Nothing is asked of the store: there is none at this address."""
    storage = Storage("s3://key:secret@bucket/folder?endpoint_override=127.0.0.1:1", "lake")
    with pytest.raises(StorageFailed, match="the path leads out of the base path"):
        USES[use](storage, path)


def test_a_base_path_that_is_itself_a_link_is_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    storage = Storage(str(tmp_path / "lake"), "lake")
    storage.write("public.t/..hidden/file", [b"x"])
    assert b"".join(storage.read("public.t/..hidden/file")) == b"x"


@pytest.fixture
def records(database: Database) -> Any:
    made = SourceRecords(
        database.dsn, StreamId("test", "lake", "source"), Registry("cdc_registry", "test", "lake", True)
    )
    made.open()
    with closing(made):
        yield made


def test_a_consumer_cannot_have_files_elsewhere_removed(
    database: Database, storage: Storage, records: SourceRecords, tmp_path: Path
) -> None:
    database.execute(
        "drop role if exists reader; create role reader",
        "grant usage on schema cdc_registry to reader",
        "grant insert on all tables in schema cdc_registry to reader",
    )
    base = Path(storage.base)
    (base / "public.t" / "old").write_text("old")
    storage.write(OWNER, [b"me"])
    wanted = [f"{base}/{path}" for path in OUTSIDE if path != ABSOLUTE and "\0" not in path]
    wanted += [f"{tmp_path}/precious/file", f"{base}/{OWNER}", f"{base}/", "", "/", f"{base}/public.t/old"]
    with database.connect() as attacker:
        attacker.execute("set role reader")
        with attacker.cursor() as cursor:
            cursor.executemany(
                "insert into cdc_registry.removals values (%s)", [(path,) for path in dict.fromkeys(wanted)]
            )
    expire(storage, records, 7)
    assert (tmp_path / "precious" / "file").read_text() == "precious"
    assert (base / OWNER).read_text() == "me"
    assert not (base / "public.t" / "old").exists()
    assert database.query("table cdc_registry.removals") == [], "what is not ours to do is not asked again"
    database.execute("drop owned by reader; drop role reader")


def test_a_consumer_cannot_have_files_elsewhere_read(
    database: Database, storage: Storage, records: SourceRecords, tmp_path: Path
) -> None:
    assert records.registry.enabled
    columns = database.query(
        "select column_name from information_schema.columns where table_name = 'file_log' order by 1"
    )
    assert ("file_path",) in columns
    for path in (
        f"{storage.base}/../precious/file",
        f"{tmp_path}/precious/file",
        f"{storage.base}/linked/file",
    ):
        database.execute(
            "truncate cdc_registry.file_log",
            f"""insert into cdc_registry.file_log
                (table_name, batch_timestamp, file_type, file_path, start_lsn, end_lsn, row_count,
                 file_size_bytes, sha256)
                values ('public.t', now(), 'schema', '{path}', '0/1', '0/1', 0, 0, '')""",
        )
        with pytest.raises(StorageFailed, match="the path leads out of the base path"):
            _export(database.dsn, "cdc_registry", storage, TableName("public", "t"))


# The keys


@pytest.mark.parametrize(
    ("given", "mode"),
    [("0640", 0o640), ("640", 0o640), (0o640, 0o640), ("0o644", 0o644), (0o600, 0o600), ("0660", 0o660)],
)
def test_a_mode_is_octal_as_yaml_has_it(given: object, mode: int) -> None:
    assert int(FilesOptions.model_validate({"base_path": "/x", "mode": given}).mode, 8) == mode


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mode: 9999", "mode: expected permissions"),
        ("mode: 640", "mode: expected 0600"),
        ("mode: '0888'", "mode: expected permissions"),
        ("mode: 0666", "mode: expected 0600"),
        ("mode: 0642", "mode: expected 0600"),
        ("mode: 0440", "mode: expected 0600"),
        ("mode: 0750", "mode: expected 0600"),
        ("mode: '4640'", "mode: expected 0600"),
        ("mode: yes", "mode: expected permissions"),
        ("mode: -1", "mode: expected permissions"),
        ("mode: rw-r-----", "mode: expected permissions"),
        ("group: -1", "group"),
        ("group: [a]", "group"),
    ],
)
def test_a_mode_that_is_none_or_lets_everybody_write_is_refused(
    database: Database, tmp_path: Path, line: str, said: str
) -> None:
    lake = {"name": "lake", "type": "files", "base_path": "/x", "format": "csv"}
    file = configuration(tmp_path, database, lake)
    file.write_text(file.read_text().replace("format: csv", line))
    with pytest.raises(ConfigError, match=rf"destinations\[0\]\.{said}"):
        load(file)


@pytest.mark.parametrize("keys", [{"mode": "0640"}, {"group": "daemon"}])
def test_an_object_store_has_neither(database: Database, tmp_path: Path, keys: dict[str, str]) -> None:
    lake = {"name": "lake", "type": "files", "base_path": "s3://bucket/folder", **keys}
    with pytest.raises(ConfigError, match="an object store has rules of its own"):
        load(configuration(tmp_path, database, lake))


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a/b", "a/../b", "", "-x", "a\n", "a\0"])
def test_a_name_that_would_be_a_path_is_none(database: Database, tmp_path: Path, name: str) -> None:
    for sections in ({"pipeline": name}, {"sources": [{"name": name, "dsn": database.dsn}]}):
        with pytest.raises(ConfigError, match="expected a name"):
            load(configuration(tmp_path, database, **sections))

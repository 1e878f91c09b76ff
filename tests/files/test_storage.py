"""Files on a disk: whole or not there at all, also when the disk fails; compressed as anybody can read."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import zstandard
from pyspark.sql import SparkSession

from penstock.destinations.files.compression import Algorithm, Compression
from penstock.destinations.files.storage import Storage
from penstock.model import TableName
from penstock.model.errors import ConfigError, PenstockError, StorageFailed
from penstock.model.phases import Phase
from penstock.state.store import Store
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import Running, configuration, running


@dataclass(frozen=True)
class Disk:
    """A small file system of its own, with the base path in it."""

    path: Path

    @property
    def base(self) -> Path:
        return self.path / "files"

    def mount(self, options: str) -> None:
        what = ["mount", "-o", options, *(() if "remount" in options else ("-t", "tmpfs", "penstock"))]
        subprocess.run([*what, str(self.path)], check=True, capture_output=True)

    def fill(self, left: int = 0) -> None:
        """Until there is no room but for so many bytes."""
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        with (self.path / "filler").open("r+b") as filler:
            filler.truncate(max(0, filler.seek(0, os.SEEK_END) - left))

    def empty(self) -> None:
        (self.path / "filler").unlink()

    def set(self, mode: str) -> None:
        """`ro` or `rw`; not while a file is being written."""
        for attempt in range(100):
            try:
                self.mount(f"remount,{mode}")
                return
            except subprocess.CalledProcessError:
                if attempt == 99:
                    raise
                time.sleep(0.02)

    def hide(self) -> None:
        self.base.rename(self.path / "elsewhere")

    def restore(self) -> None:
        (self.path / "elsewhere").rename(self.base)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    made.path.mkdir()
    try:
        made.mount("size=2m")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here: that takes root")
    made.base.mkdir()
    yield made
    subprocess.run(["umount", "-l", str(made.path)], check=True)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "base").mkdir()
    return Storage(str(tmp_path / "base"), "files")


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def waits_for(pipeline: Running) -> PenstockError | None:
    url = pipeline.config.state.url.get_secret_value()
    with Store.open(url, "test", exclusive=False) as store:
        found = store.waiting("source", "files")
    return found[1] if found else None


# A pipeline


def test_a_disk_that_fails_is_waited_for(
    spark: SparkSession, source: Database, destination: Database, disk: Disk, tmp_path: Path
) -> None:
    failures: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
        ("No space left on device", disk.fill, disk.empty),
        ("Read-only file system", lambda: disk.set("ro"), lambda: disk.set("rw")),
        ("the base path is not there", disk.hide, disk.restore),
    ]
    source.execute("create table users (id int primary key, name text)", "insert into users values (0, 'a')")
    tables = [TableName("public", "users")]
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(disk.path)), spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        for number, (reason, fail, mend) in enumerate(failures, 1):
            before = files_of(source)
            fail()
            source.execute(
                f"create table new_{number} as select i as id from generate_series(1, 1000) i",
                f"alter table new_{number} add primary key (id)",
            )
            new = TableName("public", f"new_{number}")
            copying = pipeline.until(partial(error_of, pipeline, new))
            source.execute(
                f"insert into users values ({number}, 'b')", f"delete from users where id < {number}"
            )
            told = pipeline.until(lambda: waits_for(pipeline))
            for error in (told, copying):
                assert isinstance(error, StorageFailed)
                assert reason in error.reason
                assert error.where["destination"] == "files"
                assert str(error.where["file"]).startswith(str(disk.base))
                assert "goes on by itself" in error.remedy
            assert pipeline.tables()["public.users"].phase is Phase.READY
            assert files_of(source) == before
            mend()
            tables.append(new)
            until_rebuilt(pipeline, consumer, source, destination, lambda: tables)
        pipeline.until_phase(Phase.READY, *map(str, tables))
        pipeline.until(lambda: waits_for(pipeline) is None)
    # Nothing is there but what is registered: no partial file, no temporary one, no empty folder.
    found = [path for path in disk.base.rglob("*") if path.is_file() or not any(path.iterdir())]
    assert {str(path) for path in found} == files_of(source) | {str(disk.base / ".penstock")}


def error_of(pipeline: Running, table: TableName) -> PenstockError | None:
    state = pipeline.tables().get(str(table))
    return state.error if state is not None and state.phase is Phase.ERRORED else None


def files_of(source: Database) -> set[str]:
    return {path for (path,) in source.query("select file_path from cdc_registry.file_log")}


# One file


def test_a_file_that_finds_no_room_leaves_nothing(disk: Disk) -> None:
    storage = Storage(str(disk.base), "files")
    storage.write("t/1/a", [b"here before"])
    disk.fill(left=300_000)
    with pytest.raises(StorageFailed, match=r"No space left on device \(destination files, file .*/t/2/b\)"):
        storage.write("t/2/b", [b"x" * 100_000] * 10)
    assert everything(disk.base) == ["t", "t/1", "t/1/a"]
    disk.set("ro")
    with pytest.raises(StorageFailed, match="Read-only file system"):
        storage.claim("me", anew=True)
    with pytest.raises(StorageFailed, match="Read-only file system"):
        storage.remove(["t/1/a"])
    storage.remove_if_possible(["t/1/a"])
    assert b"".join(storage.read("t/1/a")) == b"here before"


def test_a_file_is_not_seen_before_it_is_whole(storage: Storage) -> None:
    base = Path(storage.base)

    def blocks() -> Iterator[bytes]:
        yield b"one"
        assert not storage.exists("t/1/a.csv")
        assert [path.suffix for path in base.rglob("*") if path.is_file()] == [".tmp"]
        yield b"two"

    written = storage.write("t/1/a.csv", blocks())
    assert everything(base) == ["t", "t/1", "t/1/a.csv"]
    assert (base / written.path).read_bytes() == b"onetwo"
    assert storage.exists(written.path)


def test_an_error_on_the_way_leaves_nothing(storage: Storage) -> None:
    def blocks() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("the source is gone")

    for attempt in (storage.write, storage.put):
        with pytest.raises(ValueError, match="the source is gone"):
            attempt("t/1/a.csv", blocks())
        assert everything(Path(storage.base)) == []


@pytest.mark.parametrize("damage", [b"other", b"tw", b"two and more"])
def test_a_file_that_does_not_read_as_it_was_written_is_refused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    whole = Storage._sink

    @contextmanager
    def damaging(self: Storage, path: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        with whole(self, path, durable=durable) as sink:
            yield sink
        (Path(self.base) / path).write_bytes(damage)

    monkeypatch.setattr(Storage, "_sink", damaging)
    with pytest.raises(StorageFailed, match="were written") as refused:
        storage.write("t/1/a", [b"two"])
    assert "does not keep what is written" in refused.value.remedy
    assert everything(Path(storage.base)) == []


def test_folders_go_with_their_last_file_but_never_the_base_path(storage: Storage) -> None:
    base = Path(storage.base)
    for path in ("t/1/a", "t/1/b", "t/2/.parts/1", "top"):
        storage.write(path, [b"x"])
    storage.remove(["t/1/a", "never/was"])
    assert everything(base) == ["t", "t/1", "t/1/b", "t/2", "t/2/.parts", "t/2/.parts/1", "top"]
    storage.remove(["t/1/b", "t/2/.parts/1"])
    assert everything(base) == ["top"]
    storage.remove(["top"])
    assert base.is_dir()


def test_without_its_base_path_nothing_is_written_removed_or_found(storage: Storage) -> None:
    base = Path(storage.base)
    written = storage.write("t/1/a", [b"x"])
    base.rename(base.with_name("elsewhere"))
    attempts: list[Callable[[], Any]] = [
        lambda: storage.claim("me", anew=False),
        lambda: storage.put("t/2/a", [b"x"]),
        lambda: storage.remove([written.path]),
        lambda: storage.names("t"),
        lambda: storage.folders("t"),
    ]
    for attempt in attempts:
        with pytest.raises(StorageFailed, match="the base path is not there") as failed:
            attempt()
        assert "it is not made anew" in failed.value.remedy
    assert not base.exists()
    base.with_name("elsewhere").rename(base)
    storage.verify(written)


def test_a_folder_may_be_given_as_a_uri(tmp_path: Path) -> None:
    base = tmp_path / "a base"
    storage = Storage(f"file://{tmp_path}/a%20base", "files")
    storage.claim("me", anew=True)
    written = storage.write("t/1/a.csv.gz", [b"as it is"])
    assert (base / written.path).read_bytes() == b"as it is"
    assert storage.names("t") == [written.path]
    with pytest.raises(ZeroDivisionError):
        storage.write("t/2/a", (b"x" * (1 // n) for n in (1, 0)))
    storage.remove([written.path])
    assert everything(base) == [".penstock"]


def test_a_base_path_has_one_owner(storage: Storage) -> None:
    base = Path(storage.base)
    storage.claim("me", anew=True)
    storage.claim("me", anew=False)
    with pytest.raises(ConfigError, match="is that of me"):
        storage.claim("somebody else", anew=True)
    (base / ".penstock").unlink()  # as if a disk were not mounted
    with pytest.raises(StorageFailed, match="not the one that files were written to"):
        storage.claim("me", anew=False)
    assert everything(base) == []


def test_parts_become_one_file_and_are_gone(storage: Storage) -> None:
    parts = [f"t/1/.parts/{number}" for number in range(3)]
    for part in parts:
        storage.put(part, [part[-1].encode()])
    written = storage.concatenate("t/1/all", [b"header "], parts)
    assert b"".join(storage.read(written.path)) == b"header 012"
    assert everything(Path(storage.base)) == ["t", "t/1", "t/1/all"]
    assert storage.folders("t") == ["t/1"]


# Compression

LEVELS = [("gzip", level) for level in range(1, 10)] + [("zstd", level) for level in range(1, 20)]


@pytest.mark.parametrize(("algorithm", "level"), [*LEVELS, ("none", 6)])
def test_parts_behind_each_other_are_one_file_for_the_usual_tools(
    tmp_path: Path, algorithm: Algorithm, level: int
) -> None:
    compression = Compression(algorithm, level)
    parts: list[list[bytes | memoryview]] = [
        [b"header\n"],
        [memoryview(b"1,a\n" * 50_000), os.urandom(5000), b""],
        [],
        [b"last\n"],
    ]
    plain = b"".join(bytes(block) for part in parts for block in part)
    file = tmp_path / f"a.csv{compression.suffix}"
    file.write_bytes(b"".join(piece for part in parts for piece in compression.compressed(part)))
    if algorithm == "gzip":
        assert gzip.decompress(file.read_bytes()) == plain
    elif algorithm == "zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(file.read_bytes(), read_across_frames=True)
        assert reader.read() == plain
    else:
        assert file.read_bytes() == plain
    tool = shutil.which(algorithm)
    if tool is not None and level in (1, 3, 9, 19):
        assert subprocess.run([tool, "-dc", str(file)], capture_output=True, check=True).stdout == plain
        subprocess.run([tool, "-t", str(file)], capture_output=True, check=True)
    assert algorithm == "none" or file.stat().st_size < 20_000

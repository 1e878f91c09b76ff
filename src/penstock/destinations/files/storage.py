"""The base path: a folder of a local disk, or of any file system that pyarrow opens by its URI.

A file appears whole or not at all. On a disk it is written beside its place, made durable, renamed, and read
again to see that it is what was written; an object store shows an object only when all of it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

from penstock.model.errors import ConfigError, PenstockError, StorageFailed, without_secrets

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is there, below the base path."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Travels to Spark's executors: a file system is opened where it is used."""

    base: str
    """A path, or a URI. May hold a secret: not for any output."""
    name: str
    """The destination's, for errors."""

    @property
    def is_local(self) -> bool:
        return "://" not in self.base

    def shown(self, path: str) -> str:
        """Where a file is, for people and for the registry: without what comes after a `?`."""
        return f"{without_secrets(self.base.partition('?')[0]).rstrip('/')}/{path}"

    def check(self) -> None:
        """That files can be written: a small one is, and removed."""
        probe = f".penstock-{uuid.uuid4().hex}"
        self.write(probe, [b"penstock"])
        self.remove([probe])

    def write(self, path: str, blocks: Iterable[bytes]) -> Written:
        """A file that is durable, and was read again, when this returns."""
        with self._explained(path):
            with self._sink(path, durable=True) as sink:
                written = Written(path, *_sha256(blocks, sink.write))
            self.verify(written)
            return written

    def put(self, path: str, blocks: Iterable[bytes]) -> None:
        """A file for a while: as whole as any, but not made durable, and nobody looks at it again."""
        with self._explained(path), self._sink(path) as sink:
            for block in blocks:
                sink.write(block)

    def concatenate(self, path: str, first: Iterable[bytes], parts: Iterable[str]) -> Written:
        """One file: of some bytes, and of other files, which are removed."""
        names = list(parts)
        made = self.write(path, chain(first, (piece for name in names for piece in self.read(name))))
        self.remove(names)
        return made

    def read(self, path: str) -> Iterator[bytes]:
        with self._explained(path), self._open(path) as file:
            while piece := file.read(_PIECE):
                yield piece

    def verify(self, written: Written) -> None:
        found = _sha256(self.read(written.path))
        if found != (written.size, written.sha256):
            raise StorageFailed(
                f"the file has {found[0]} bytes and SHA-256 {found[1]}, "
                f"{written.size} bytes and {written.sha256} were written",
                destination=self.name,
                file=self.shown(written.path),
                remedy="The storage does not keep what is written to it: look at its own log",
            )

    def exists(self, path: str) -> bool:
        with self._explained(path):
            system, root = self._system()
            found = system.get_file_info(f"{root}/{path}")
            return bool(found.type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """All files below a folder, if there is one: paths below the base path."""
        with self._explained(folder):
            system, root = self._system()
            selector = fs.FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True)
            found = system.get_file_info(selector)
            files = [info.path for info in found if info.type == fs.FileType.File]
            return sorted(path.removeprefix(f"{root}/") for path in files)

    def folders(self, folder: str) -> list[str]:
        """The folders directly below one, if there is one."""
        with self._explained(folder):
            system, root = self._system()
            found = system.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
            return sorted(
                f"{folder}/{info.base_name}" for info in found if info.type == fs.FileType.Directory
            )

    def remove_if_possible(self, paths: Iterable[str]) -> None:
        """What an error leaves behind, if the error lets us."""
        with contextlib.suppress(PenstockError):
            self.remove(paths)

    def remove(self, paths: Iterable[str]) -> None:
        """Files, and the folders that are empty then; what is not there is no error."""
        system, root = self._system()
        for path in paths:
            with self._explained(path):
                if self.is_local:
                    self._remove_local(Path(root, path))
                elif system.get_file_info(f"{root}/{path}").type != fs.FileType.NotFound:
                    system.delete_file(f"{root}/{path}")

    def _remove_local(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == Path(self.base):
                return
            try:
                folder.rmdir()
            except OSError:
                return

    def make(self, *, anew: bool) -> None:
        """The base path, if there is none and nothing was written to it before."""
        if anew and self.is_local:
            with self._explained(""):
                Path(self.base).mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _sink(self, path: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        """What is written here appears at the end, all of it, or, by an error, not at all."""
        if self.is_local:
            with self._local_sink(Path(self.base, path), durable) as sink:
                yield sink
            return
        system, root = self._system()
        sink = system.open_output_stream(f"{root}/{path}")
        try:
            yield sink
        except BaseException:
            sink.abort()
            raise
        sink.close()

    @contextmanager
    def _local_sink(self, final: Path, durable: bool) -> Iterator[IO[bytes]]:
        if not Path(self.base).is_dir():
            raise StorageFailed(
                "the base path is not there",
                destination=self.name,
                file=self.base,
                remedy="Make the folder, or mount what belongs there: it is not made anew, as the files "
                "before would be missing in it",
            )
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as sink:
                yield sink
                if durable:
                    sink.flush()
                    os.fsync(sink.fileno())
            temporary.rename(final)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            for folder in {final.parent, final.parent.parent}:
                _sync(folder)

    def _open(self, path: str) -> Any:
        if self.is_local:
            return Path(self.base, path).open("rb")
        system, root = self._system()
        return system.open_input_stream(f"{root}/{path}")

    def _system(self) -> tuple[Any, str]:
        if self.is_local:
            return fs.LocalFileSystem(), self.base
        try:
            system, root = fs.FileSystem.from_uri(self.base)
        except (ValueError, OSError, NotImplementedError) as error:
            raise ConfigError(
                f"base_path of destination {self.name} cannot be opened: {without_secrets(str(error))}",
                remedy="A folder, or a URI that pyarrow knows: s3://bucket/folder, gs://…, abfs://…, hdfs://…",
            ) from None
        return system, root.rstrip("/")

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = error.strerror or without_secrets(str(error)).splitlines()[0][:300]
            raise StorageFailed(said, destination=self.name, file=self.shown(path)) from None


def _sha256(blocks: Iterable[bytes], also: Callable[[bytes], object] | None = None) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for block in blocks:
        if also is not None:
            also(block)
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

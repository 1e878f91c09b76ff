"""The base path: a folder of a local disk, or of any file system that pyarrow opens by its URI.

A file appears whole or not at all. On a disk it is written beside its place, made durable and renamed. An
object store shows an object when its upload is finished, and pyarrow can finish one but not give it up: so a
file waits here, in memory or a temporary file, until all of it is there. Either way it is then read again,
and removed if it is not what was written.

Paths are given below the base path. Some are read from the registry, to which others may write: one that
leads out of the base path, by itself or by a link, is refused, whatever is to be done with it.

A URI may hold secrets. They are in no text that leaves this module.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import fs

from penstock.destinations.files.permissions import Permissions
from penstock.model.credentials import StoreKeys
from penstock.model.errors import ConfigError, PenstockError, StorageFailed
from penstock.model.secrets import without_secrets

_PIECE = 4 << 20
_IN_MEMORY = 16 << 20
"""Bytes of a file on its way to an object store; a larger one waits on this machine's disk."""
_REMOTE_REMEDY = (
    "Check that the store answers, and that the credentials may read, write and delete there; it goes on by "
    "itself and nothing is lost"
)
_URI = re.compile(
    r"(?P<scheme>[^:/?]+)://(?:(?P<user>[^/?@:]*)(?::(?P<password>[^/?@]*))?@)?(?P<place>[^?]*)"
)
_TELLING = {"endpoint_override", "scheme", "region", "allow_bucket_creation", "allow_bucket_deletion"}
"""Parameters of a URI that are no secrets; any other may be one."""


OWNER = ".penstock"
"""The file in the base path that says whose it is."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is there, below the base path."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Travels to Spark's executors: a file system is opened where it is used."""

    base: str = field(repr=False)
    """A path, or a URI. May hold a secret: not for any output."""
    name: str
    """The destination's, for errors."""
    keys: StoreKeys | None = field(default=None, repr=False)
    """For an object store, if they are not in the URI, nor where pyarrow looks for them."""
    permissions: Permissions = field(default_factory=Permissions)
    """Of files on a disk."""

    @property
    def is_local(self) -> bool:
        return "://" not in self.base or self.base.startswith("file://")

    @property
    def _folder(self) -> Path:
        """The base path on a disk."""
        return Path(unquote(urlsplit(self.base).path) if "://" in self.base else self.base)

    def shown(self, path: str) -> str:
        """Return where a file is, for people and for the registry: without credentials, and without what
        comes after a `?`."""
        uri = _URI.match(self.base)
        if uri is None:
            return f"{self.base.rstrip('/')}/{path}"
        user = f"{uri['user']}@" if uri["user"] and uri["scheme"] != "s3" else ""
        return f"{uri['scheme']}://{user}{uri['place'].rstrip('/')}/{path}"

    def holds(self, path: str) -> bool:
        """Whether a path leads nowhere but below the base path."""
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or "\0" in path:
            return False
        if not self.is_local:
            return True
        try:
            base = self._folder.resolve()
            return (base / path).resolve().is_relative_to(base)
        except (OSError, RuntimeError):  # links that lead in a circle
            return False

    def write(self, path: str, blocks: Iterable[bytes]) -> Written:
        """Write a file that is durable, and was read again, when this returns."""
        with self._explained(path), self._sink(path, durable=True) as sink:
            written = Written(path, *_sha256(blocks, sink.write))
        try:
            self.verify(written)
        except PenstockError:
            self.remove_if_possible([path])
            raise
        return written

    def put(self, path: str, blocks: Iterable[bytes]) -> None:
        """Write a temporary file: as whole as any, but neither made durable nor read again."""
        with self._explained(path), self._sink(path) as sink:
            for block in blocks:
                sink.write(block)

    def concatenate(self, path: str, first: Iterable[bytes], parts: Iterable[str]) -> Written:
        """Write one file of some bytes and of other files, which are removed; return it."""
        names = list(parts)
        written = self.write(path, chain(first, (piece for name in names for piece in self.read(name))))
        self.remove(names)
        return written

    def read(self, path: str) -> Iterator[bytes]:
        with self._explained(path), self._open(path) as file:
            while piece := file.read(_PIECE):
                yield piece

    def verify(self, written: Written) -> None:
        actual = _sha256(self.read(written.path))
        if actual != (written.size, written.sha256):
            raise StorageFailed(
                f"the file has {actual[0]} bytes and SHA-256 {actual[1]}, "
                f"{written.size} bytes and {written.sha256} were written",
                destination=self.name,
                file=self.shown(written.path),
                remedy="The storage does not keep what is written to it: look at its own log",
            )

    def exists(self, path: str) -> bool:
        with self._explained(path):
            system, root = self._present()
            info = system.get_file_info(f"{root}/{path}")
            return bool(info.type == fs.FileType.File)

    def names(self, folder: str) -> list[str]:
        """Return all files below a folder, if there is one: paths below the base path."""
        with self._explained(folder):
            system, root = self._present()
            selector = fs.FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True)
            infos = system.get_file_info(selector)
            files = [info.path for info in infos if info.type == fs.FileType.File]
            return sorted(path.removeprefix(f"{root}/") for path in files)

    def folders(self, folder: str) -> list[str]:
        """Return the folders directly below one, if there is one."""
        with self._explained(folder):
            system, root = self._present()
            infos = system.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
            return sorted(
                f"{folder}/{info.base_name}" for info in infos if info.type == fs.FileType.Directory
            )

    def remove_if_possible(self, paths: Iterable[str]) -> None:
        """Remove what an error left behind, if that can be done."""
        with contextlib.suppress(PenstockError):
            self.remove(paths)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and the folders that are empty then; what is not there is no error."""
        for path in paths:
            with self._explained(path):
                system, root = self._present()
                if self.is_local:
                    self._remove_local(Path(root, path))
                elif system.get_file_info(f"{root}/{path}").type != fs.FileType.NotFound:
                    system.delete_file(f"{root}/{path}")
                    _remove_empty(system, root, path)

    def _remove_local(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        for folder in file.parents:
            if folder == self._folder:
                return
            try:
                folder.rmdir()
            except OSError:
                return

    def claim(self, owner: str, *, anew: bool) -> None:
        """Make the base path the owner's, if nothing was written to it before; otherwise see that it is. A
        folder where a disk is to be mounted is another one, and somebody else's files are not ours to sweep.
        Whether files can be written at all is seen with it."""
        if anew and self.is_local:
            with self._explained(""):
                self.permissions.make_base(self._folder)
        current = b"".join(self.read(OWNER)).decode() if self.exists(OWNER) else None
        if current not in (None, owner):
            raise ConfigError(
                f"base_path of destination {self.name} is that of {current}",
                remedy=f"Give it one of its own. If that is gone for good, remove {self.shown(OWNER)}",
            )
        if current is None and not anew:
            raise StorageFailed(
                "the base path is not the one that files were written to",
                destination=self.name,
                file=self.shown(OWNER),
                remedy="Mount what belongs there, or put back what was moved; it goes on by itself then",
            )
        self.write(OWNER, [owner.encode()])
        self._remove_temporary(OWNER)

    def _remove_temporary(self, path: str) -> None:
        """Remove what a process left that was killed while it wrote a file on a disk."""
        if self.is_local:
            final = self._folder / path
            with self._explained(path):
                for temporary in final.parent.glob(f".{final.name}.*.tmp"):
                    temporary.unlink(missing_ok=True)

    @contextmanager
    def _sink(self, path: str, *, durable: bool = False) -> Iterator[IO[bytes]]:
        """Yield a sink whose file appears at the end, all of it, or, after an error, not at all."""
        if self.is_local:
            with self._local_sink(Path(self._present()[1], path), durable) as sink:
                yield sink
            return
        system, root = self._system()
        with _waiting_room(self.name) as room:
            yield room
            room.seek(0)
            with system.open_output_stream(f"{root}/{path}", compression=None) as object:
                shutil.copyfileobj(room, object, _PIECE)

    @contextmanager
    def _local_sink(self, final: Path, durable: bool) -> Iterator[IO[bytes]]:
        self.permissions.make_folder(final.parent, self._folder)
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "wb", opener=self.permissions.opener) as sink:
                yield sink
                if durable:
                    sink.flush()
                    os.fsync(sink.fileno())
            temporary.rename(final)
        except BaseException:
            with contextlib.suppress(OSError):
                self._remove_local(temporary)
            raise
        if durable:
            for folder in {final.parent, final.parent.parent}:
                _sync(folder)

    def _open(self, path: str) -> Any:
        if self.is_local:
            return (self._folder / path).open("rb")
        system, root = self._system()
        return system.open_input_stream(f"{root}/{path}", compression=None)

    def _present(self) -> tuple[Any, str]:
        """Return the file system, and the base path in it; raise if that is a folder which is not there."""
        if self.is_local and not self._folder.is_dir():
            raise StorageFailed(
                "the base path is not there",
                destination=self.name,
                file=self.shown("").rstrip("/"),
                remedy="Make the folder, or mount what belongs there: it is not made anew, as the files "
                "before would be missing in it. It goes on by itself then, and nothing is lost",
            )
        return self._system()

    def _system(self) -> tuple[Any, str]:
        if self.is_local:
            return _LOCAL, str(self._folder)
        try:
            return _opened(self.base, self.keys)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"base_path of destination {self.name} cannot be opened: {self._scrubbed(str(error))}",
                remedy="A folder, or a URI that pyarrow knows: s3://bucket/folder, gs://…, abfs://…, hdfs://…",
            ) from None

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        if not self.holds(path):
            raise StorageFailed(
                "the path leads out of the base path",
                destination=self.name,
                file=self.shown(path),
                remedy="Nothing was done with it. See who may write to the registry, or made a link there",
            )
        try:
            yield
        except OSError as error:
            reason = error.strerror or self._scrubbed(str(error)).splitlines()[0][:300]
            remedy = None if self.is_local else _REMOTE_REMEDY
            raise StorageFailed(reason, destination=self.name, file=self.shown(path), remedy=remedy) from None

    def _scrubbed(self, text: str) -> str:
        """Return a library's words without the credentials that it was given."""
        keys = astuple(self.keys) if self.keys else ()
        secrets = _secrets(self.base) | {key for key in keys if key}
        for secret in [self.base, *sorted(secrets, key=len, reverse=True)]:
            text = text.replace(secret, "***")
        return without_secrets(text)


_LOCAL = fs.LocalFileSystem()


@lru_cache(maxsize=16)
def _opened(base: str, keys: StoreKeys | None) -> tuple[Any, str]:
    """Open the file system, once in a process: that takes requests, or a look for credentials."""
    if keys is None:
        system, root = fs.FileSystem.from_uri(base)
        return system, root.rstrip("/")
    place, _, query = base.removeprefix("s3://").partition("?")
    options: dict[str, Any] = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    if unknown := options.keys() - _TELLING:
        raise ValueError(f"unexpected parameters: {', '.join(sorted(unknown))}")
    if not options.keys() & {"region", "endpoint_override"}:
        options["region"] = fs.resolve_s3_region(place.partition("/")[0])
    for switch in ("allow_bucket_creation", "allow_bucket_deletion"):
        options[switch] = options.get(switch) == "true"
    system = fs.S3FileSystem(
        access_key=keys.access, secret_key=keys.secret, session_token=keys.token, **options
    )
    return system, unquote(place).rstrip("/")


def _secrets(base: str) -> set[str]:
    """Return what must not be told of a URI, as it stands there and percent-decoded."""
    uri = _URI.match(base)
    if uri is None:
        return set()
    pairs = [part.partition("=") for part in base.partition("?")[2].split("&")]
    secrets = [value for key, _, value in pairs if key not in _TELLING]
    secrets += [uri["password"], uri["user"] if uri["scheme"] == "s3" else ""]
    return {form for secret in secrets if secret for form in (secret, unquote(secret))}


@contextmanager
def _waiting_room(destination: str) -> Iterator[IO[bytes]]:
    try:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as room:
            yield room
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StorageFailed(
            "no space left for a file on its way to the store",
            destination=destination,
            file=tempfile.gettempdir(),
            remedy="Make room there, or name another folder in TMPDIR; nothing is lost",
        ) from None


def _remove_empty(system: Any, root: str, path: str) -> None:
    """The folder of an object that is gone, for which pyarrow puts an empty object. Only a batch's own, to
    which nobody else writes: what came into it since we looked would go with it."""
    while (folder := path.rpartition("/")[0]) and not system.get_file_info(
        fs.FileSelector(f"{root}/{folder}", allow_not_found=True)
    ):
        system.delete_dir(f"{root}/{folder}")
        if not folder.rpartition("/")[2].startswith("."):
            return
        path = folder


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

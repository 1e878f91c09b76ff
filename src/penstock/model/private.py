"""Files and folders that are ours alone: spools, state, logs, caches.

They hold rows of the source, or programs that we start. So they are 0600 in 0700, whatever the umask is; a
process has only one of those, and it is not always ours to set (a user's Spark, its executors).

A folder is ours by making or by name: the one that is asked for here, what is missing above it, and a
`.penstock` with everything below it. What of ours has a wider mode, from an earlier version, is tightened.
What belongs to another user is refused. The folders above are the operator's and stay as they are; one in
which everybody may put something else in the place of ours (writable by all, not sticky) is refused.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import NotPrivate

FOLDER, FILE = 0o700, 0o600
OURS = ".penstock"
"""A folder of this name is ours, wherever it is."""
_PERMISSIONS = 0o777


def folder(path: Path) -> Path:
    """Make the folder, or see that it is ours alone."""
    _make(path, ours_by_name=True)
    return path


def with_above(path: Path) -> None:
    """Make the folder if it is missing, and what is missing above it. One that is there stays as it is,
    unless it is ours by its name."""
    _make(path, ours_by_name=False)


def file(path: Path) -> None:
    """Make an empty file, or see that the one there is ours alone. It is not opened: to close it would free
    the locks of SQLite that this process has on it."""
    _check_above(path.absolute().parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    _settle(path, FILE)


def opener(path: str, flags: int) -> int:
    """Open a file (also as `open(…, opener=opener)`) that is ours alone, or becomes so; never a link."""
    handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE)
    try:
        status = os.fstat(handle)
        _check_owner(status, Path(path))
        if status.st_mode & _PERMISSIONS != FILE:
            os.fchmod(handle, FILE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def tighten(path: Path) -> None:
    """Make all that is in a folder ours alone: an earlier version may have left it open. What a link of ours
    leads to is left alone."""
    for within, folders, files in os.walk(path):
        for name, mode in (*((name, FOLDER) for name in folders), *((name, FILE) for name in files)):
            place = Path(within, name)
            with suppress(FileNotFoundError):  # others of ours use the folder, too
                status = place.lstat()
                _check_owner(status, place)
                if not stat.S_ISLNK(status.st_mode):
                    _settle(place, mode)


def tighten_file(path: Path) -> None:
    """Make a file of an earlier version ours alone, if it is there and ours."""
    with suppress(FileNotFoundError, NotPrivate):
        _settle(path, FILE)


def look(path: Path) -> None:
    """Raise what keeps a folder or file from being used, and change nothing."""
    try:
        there = [place for place in _way(path) if place.exists()]
        if there[-1] == path.absolute():
            _check_owner(path.stat(), path)
        _check_above(path.absolute().parent if there[-1] == path.absolute() else there[-1])
    except PermissionError as error:
        raise NotPrivate(f"{_user()} may not enter its folder", file=error.filename) from None


def is_ours_alone(path: Path) -> bool:
    """Whether nobody else can have written there: it is ours, no link, and only we may write to it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and not may_write


def claim(path: Path) -> bool:
    """Make a folder for programs that we run, if it is missing; return whether it is ours alone. One
    that anybody else could have written to is not tightened: it is too late for that."""
    try:
        if not os.path.lexists(path):
            folder(path)
        return is_ours_alone(path) and os.access(path, os.W_OK) and folder(path) == path
    except (OSError, NotPrivate):
        return False


def _way(path: Path) -> Iterator[Path]:
    """Yield every folder on the way to it, from the root on."""
    path = path.absolute()
    yield from (*reversed(path.parents), path)


def _make(path: Path, *, ours_by_name: bool) -> None:
    ours = False
    for place in _way(path):
        missing = not place.exists()
        named = place.name == OURS or (ours_by_name and place == path.absolute())
        if not ours and (missing or named):
            _check_above(place.parent)
            ours = True
        if missing:
            place.mkdir(FOLDER, exist_ok=True)
        if ours:
            _settle(place, FOLDER)


def _settle(path: Path, mode: int) -> None:
    link, status = path.lstat(), path.stat()
    if stat.S_ISDIR(status.st_mode) != (mode == FOLDER):
        raise NotPrivate(f"it is {'no' if mode == FOLDER else 'a'} folder", file=path)
    if link.st_uid != 0:  # an administrator may put a link there
        _check_owner(link, path)
    _check_owner(status, path)
    if status.st_mode & _PERMISSIONS != mode:
        path.chmod(stat.S_IMODE(status.st_mode) & ~_PERMISSIONS | mode)


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise NotPrivate(f"it belongs to {_user(status.st_uid)}, and this process is {_user()}", file=path)


def _check_above(above: Path) -> None:
    status = above.stat()
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise NotPrivate(
            "everybody may write to the folder, and put something else in the place of ours",
            file=above,
            remedy=f"Run: chmod o-w {above} (or +t, where others have to write to it)",
        )


def _user(number: int | None = None) -> str:
    number = os.geteuid() if number is None else number
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"

"""Room on the spool's disk: whether an error says that there is none, and whether there is some again.

Some is kept in reserve, as a file, and let go when the disk is full: without it consumers could not say how
far they are, nor segments that they have passed be taken out of the manifest, and the disk would stay full.

SQLite does not always say that the disk is full: a file that it could not make or lengthen is an error of
input and output, or one that cannot be opened. What it means is then found out by trying.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.model import private
from penstock.model.errors import SpoolFull

RESERVE = 4 << 20
"""Bytes: SQLite writes as many to its log before it begins at the front again."""
ENOUGH = 1 << 20
"""Bytes beside the reserve; less is no room."""
_UNCLEAR = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def is_there(spool: Path) -> bool:
    """Whether the reserve and something more can be written; tried, since quotas do not show otherwise."""
    trial = spool / "room.tmp"
    try:
        _write(trial, ENOUGH if _reserve(spool).exists() else RESERVE + ENOUGH)
    except OSError as error:
        return not _says_full(error)
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    return True


def reserve(spool: Path) -> None:
    """Put room aside, if that is not done; `SpoolFull` if there is none."""
    if _reserve(spool).exists():
        return
    fresh = spool / "reserve.tmp"
    with explained(spool):
        try:
            _write(fresh, RESERVE)
            fresh.rename(_reserve(spool))
        finally:
            fresh.unlink(missing_ok=True)


def release(spool: Path) -> None:
    """Let the reserve go."""
    with suppress(OSError):
        _reserve(spool).unlink(missing_ok=True)


def _reserve(spool: Path) -> Path:
    return spool / "reserve"


def _write(path: Path, size: int) -> None:
    with open(path, "wb", opener=private.opener) as file:
        file.write(os.urandom(size))  # random bytes: no file system compresses them


@contextmanager
def explained(spool: Path) -> Iterator[None]:
    """Raise `SpoolFull` for an error that means a full disk; any other stays as it is."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not _is_of_room(error, spool):
            raise
        raise SpoolFull(f"no room for the spool: {error}", file=spool) from error


def _is_of_room(error: OSError | sqlite3.OperationalError, spool: Path) -> bool:
    if isinstance(error, OSError):
        return _says_full(error)
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return code == sqlite3.SQLITE_FULL or (code & 0xFF in _UNCLEAR and not is_there(spool))


def _says_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)

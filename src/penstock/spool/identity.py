"""Whose changes a spool holds, asked of its manifest's file without opening it for work."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors import SpoolDamaged, SpoolUnreachable, WrongSpool
from penstock.spool import room

_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose changes a spool holds. A spool never mixes two of these."""

    system_id: str
    database: str
    slot: str

    def __str__(self) -> str:
        return f"slot {self.slot} of database {self.database}, system {self.system_id}"


def spool_exists(spool: Path) -> bool:
    """Whether capture has begun here: the file is there and somebody has been named in it."""
    path = spool / "manifest.db"
    if not path.exists():
        return False
    with explained(spool / "manifest.db"), closing(sqlite3.connect(path, timeout=30)) as db:
        table = db.execute("select 1 from sqlite_master where name = 'meta'").fetchone()
        return table is not None and db.execute("select count(*) from meta").fetchone() != (0,)


def identity_of(spool: Path) -> Identity | None:
    """Return whose changes this spool holds; None where capture never began."""
    if not spool_exists(spool):
        return None
    with explained(spool / "manifest.db"), closing(sqlite3.connect(spool / "manifest.db", timeout=30)) as db:
        meta = dict(db.execute("select key, value from meta"))
    return Identity(*(meta.get(key, "") for key in ("system_id", "database", "slot")))


def check_identity(spool: Path, ours: Identity) -> None:
    """Raise `WrongSpool` if this is the spool of another slot. To be asked before anything about the slot:
    that ours is not the slot of somebody else's spool does not mean that it is lost. A slot of the same name
    in a database of the same name, on another server, is lost: `reached` tells."""
    other = identity_of(spool)
    if other is not None and (other.database, other.slot) != (ours.database, ours.slot):
        refuse_another(spool, ours)


def refuse_another(spool: Path, ours: Identity) -> None:
    other = identity_of(spool)
    if other in (None, ours):
        return
    remedy = None
    if (other.system_id, other.database) == (ours.system_id, ours.database):
        remedy = (
            f"Set `replication.slot_name: {other.slot}` to go on with it, or give this source a spool path of"
            " its own, or remove the old spool for good"
        )
    raise WrongSpool(f"the spool belongs to {other}, not to {ours}", file=spool, remedy=remedy)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours: some of them pass, some do not."""
    try:
        with room.explained(file.parent):
            yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
        if code in _PASSING:
            raise SpoolUnreachable(f"the manifest cannot be used now: {error}", file=file) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise SpoolDamaged(f"the manifest does not read: {error}", file=file) from error
        raise

"""Where a spool is, and whether it is the one of this source's slot: asked before anything about the slot.

A spool says in its manifest whose it is. One that is another's is never read, moved or removed: `WrongSpool`.

An earlier version had the spool of a source without the pipeline's name in its path. It is moved to its
place when it is needed, if it is that of the same slot. Where the pipeline is called as the source is, the
one place is within the other, and that takes two steps; a crash between them leaves the spool under a name of
its own, from where the next start takes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg

from penstock.capture.spec import CaptureSpec
from penstock.model import filesystem, private
from penstock.model.errors import NotReady, PenstockError, SpoolInUse, WrongSpool
from penstock.postgres import timeline
from penstock.postgres.connection import connect_replication, explain
from penstock.spool import room
from penstock.spool.identity import Identity, check_identity, identity_of, spool_exists
from penstock.spool.writer import captured_by


def identify(spec: CaptureSpec) -> Identity:
    """Return whose changes this capture has, as the server says."""
    try:
        with connect_replication(spec.conninfo) as connection:
            server = timeline.identify(timeline.asking(connection.pgconn))
    except PenstockError as error:
        raise error.at(source=spec.source) from None
    except psycopg.Error as error:
        raise explain(error).at(source=spec.source) from None
    return Identity(server.system_id, server.database, spec.slot)


def find(spec: CaptureSpec) -> Path:
    """Return where the spool is or will be: in its place, or where an earlier version had it. Raise
    `WrongSpool` if what is in its place is another's. Changes nothing."""
    if spool_exists(spec.spool):
        check_identity(spec.spool, identify(spec))
        return spec.spool
    if spec.former_spool is None:
        return spec.spool
    for former in (spec.former_spool, _on_its_way(spec.former_spool)):
        if spool_exists(former) and identity_of(former) == identify(spec):
            return former
    return spec.spool


def own(spec: CaptureSpec) -> None:
    """Make the spool's folder, or take it over from an earlier version; raises what speaks against that."""
    refuse_network(spec.spool)
    try:
        with room.explained(spec.spool):
            _own(spec)
    except OSError as error:
        raise PenstockError(
            f"the spool's folder cannot be made: {error.strerror}",
            file=spec.spool,
            remedy="Correct spool.path, or the folder's owner",
        ) from None


def _own(spec: CaptureSpec) -> None:
    current = find(spec)
    if spec.former_spool is not None:
        if current != spec.spool:
            _move(current, spec)
        _refuse_another(spec.spool.parent)
        private.folder(spec.spool.parent)
    private.folder(spec.spool)


def refuse_network(spool: Path) -> None:
    kind = filesystem.network(spool)
    if kind is not None:
        raise NotReady(
            f"the spool would be on a network file system ({kind}), where its manifest can be corrupted",
            file=spool,
            remedy=filesystem.REMEDY,
        )


def refuse_if_captured(spool: Path) -> None:
    holder = captured_by(spool)
    if holder is not None:
        raise SpoolInUse(f"process {holder} captures into this spool", file=spool)


def _move(former: Path, spec: CaptureSpec) -> None:
    refuse_if_captured(former)
    if former.absolute() == spec.spool.parent.absolute():
        former = former.rename(_on_its_way(former))
    private.folder(spec.spool.parent)
    shutil.rmtree(spec.spool, ignore_errors=True)  # it has no manifest: at most the log of an attempt
    former.rename(spec.spool)


def _on_its_way(former: Path) -> Path:
    return former.with_name(f".{former.name}.moved")  # no pipeline is called that: names begin with a letter


def _refuse_another(folder: Path) -> None:
    """An earlier version's spool of some other source is called as this pipeline is."""
    if spool_exists(folder):
        raise WrongSpool(
            f"the pipeline's folder is itself a spool, that of {identity_of(folder)}",
            file=folder,
            remedy="Give this pipeline a spool.path of its own, or start the other one first, which moves it",
        )

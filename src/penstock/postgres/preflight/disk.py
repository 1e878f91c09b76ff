"""Whether the spool has room on this machine."""

from __future__ import annotations

import os
import shutil

from penstock.model import filesystem
from penstock.postgres.preflight.check import (
    Check,
    CheckFunction,
    Situation,
    failure,
    ok,
    size,
    warning,
)

LITTLE = 10 * 10**9


def spool(now: Situation) -> Check:
    """Check the spool's disk; where the folder is missing, that of the folder it will be made in."""
    folder = now.spool.absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 -- where we may not look is no place for it
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return failure(
            "spool", f"{existing} cannot be written to", "Correct spool.path, or the folder's owner"
        )
    kind = filesystem.network(folder)
    if kind is not None:
        detail = f"{folder} is on a network file system ({kind}), where the manifest can be corrupted"
        return failure("spool", detail, filesystem.REMEDY)
    free = shutil.disk_usage(existing).free
    kept = int(now.setting("max_slot_wal_keep_size")) << 20
    detail = f"{size(free)} free at {folder}"
    if free < max(LITTLE, kept):
        needs = size(max(LITTLE, kept))
        return warning("spool", f"{detail}; {needs} would carry it through an outage", "Make room")
    return ok("spool", detail)


CHECKS: tuple[CheckFunction, ...] = (spool,)

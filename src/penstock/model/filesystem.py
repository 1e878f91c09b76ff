"""Whether a folder is on this machine's own disk, as far as the system tells.

SQLite's write-ahead log has its readers and writers share memory. Over a network file system they do not,
where they are on several machines, and `flock` need not reach further than one: the log is corrupted then.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""Linux's list; elsewhere there is none, and nothing is said."""

NETWORK = frozenset(
    [
        "9p",
        "acfs",
        "afs",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.curlftpfs",
        "fuse.gcsfuse",
        "fuse.gcs",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mountpoint-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
    ]
)

REMEDY = "Set `spool.path` to a folder on a local disk, or on a block device of this machine's own"

_ESCAPED = re.compile(r"\\([0-7]{3})")


def network(folder: Path) -> str | None:
    """Return the kind of network file system that a folder, which need not exist yet, is or would be on;
    None: it is local, or that is not told."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    kind = kind_of(mounts, os.path.realpath(folder))
    return kind if kind in NETWORK else None


def kind_of(mounts: str, path: str) -> str | None:
    """Return the kind of the innermost mount above a path: of several in one place the last is on top."""
    innermost, kind = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if not after:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= innermost:
            innermost, kind = len(point), after.split(" ")[0]
    return kind

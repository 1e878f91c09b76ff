"""Which kind of file system a folder is on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.model.filesystem import MOUNTS, kind_of, network

LISTED = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
40 22 0:30 / /mnt/share\\040one rw,relatime shared:5 master:2 - nfs4 host:/export rw,vers=4.2
41 40 8:2 / /mnt/share\\040one/local rw - xfs /dev/sdb1 rw
42 22 0:31 / /mnt/win rw - cifs //host/share rw
43 22 0:32 / /data rw - ext4 /dev/sdc1 rw
44 43 0:33 / /data rw - fuse.sshfs somebody@host:/ rw
not a mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/mnt", "ext4"),
        ("/mnt/share one", "nfs4"),
        ("/mnt/share one/spool", "nfs4"),
        ("/mnt/share one/local/spool", "xfs"),
        ("/mnt/share one more", "ext4"),
        ("/mnt/win/a/b", "cifs"),
        ("/data/spool", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts_and_of_several_the_last(path: str, kind: str) -> None:
    assert kind_of(LISTED, path) == kind


def test_a_folder_of_this_machine_is_local_also_before_it_exists(tmp_path: Path) -> None:
    assert network(tmp_path / "not" / "yet") is None
    if MOUNTS.exists():
        assert kind_of(MOUNTS.read_text(), os.path.realpath(tmp_path)) is not None

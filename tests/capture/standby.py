"""A standby of a test's server, made from a base backup; a server whose folder is put back as it was."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.embedded.postgres import PostgresServer, bundled_bin
from tests.bed import ACCESS, server_folder

_REPLICATION = "host replication all 127.0.0.1/32 trust\n"


@contextmanager
def standby_of(primary: PostgresServer, **settings: str) -> Iterator[PostgresServer]:
    """It follows the primary by a physical slot of its own, `standby`, and is removed at the end."""
    (primary.data / "pg_hba.conf").write_text(_REPLICATION + ACCESS)
    primary.execute("select pg_reload_conf()")
    primary.execute("select pg_create_physical_replication_slot('standby', true)")
    folder = server_folder()
    follow = {"hot_standby": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby"}
    server = PostgresServer(folder, primary.bin, primary.settings | follow | settings)
    where = f"host=127.0.0.1 port={primary.port} user=postgres"
    access = {"PGPASSWORD": primary.password, "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    # The embedded one also serves older servers, of which not every package has it.
    command = [str(bundled_bin() / "pg_basebackup"), "-d", where, "-D", str(server.data), "-c", "fast"]
    subprocess.run(command, check=True, env=access, cwd="/", capture_output=True)
    shutil.copyfile(primary.folder / "password", folder / "password")
    (server.data / "standby.signal").touch()
    with (server.data / "postgresql.auto.conf").open("a") as file:
        file.write(f"primary_conninfo = '{where} password={primary.password} dbname=postgres'\n")
    give(server.folder, like=primary.folder)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def promote(server: PostgresServer) -> None:
    server.execute("select pg_promote(true, 60)")


@contextmanager
def backup_of(server: PostgresServer) -> Iterator[Path]:
    """The folder of a server that is stopped, as it is now."""
    kept = server.folder / "backup"
    shutil.copytree(server.data, kept, symlinks=True)
    yield kept
    shutil.rmtree(kept)


def put_back(server: PostgresServer, kept: Path) -> None:
    """Of a server that is stopped."""
    shutil.rmtree(server.data)
    shutil.copytree(kept, server.data, symlinks=True)
    give(server.data, like=server.folder)


def give(folder: Path, like: Path) -> None:
    """To the user that the server runs as."""
    owner = like.stat()
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)

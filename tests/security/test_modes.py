"""Who may read what Penstock writes: itself alone, but for delivered files, whatever the umask is."""

from __future__ import annotations

import grp
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config import load
from penstock.destinations.files import preflight
from penstock.destinations.files.permissions import Permissions
from penstock.destinations.files.storage import Storage
from penstock.embedded.postgres import PostgresServer
from penstock.model import Lsn, private
from penstock.model.errors import ConfigError, NotPrivate
from penstock.spark import jvm
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.spool.writer import SpoolWriter
from penstock.state.store import Store
from tests.bed import Database, fresh_database
from tests.pipeline.running import configuration, contents, to_postgres

RUN = [sys.executable, "-c", "from penstock.cli import main; main()", "run"]
IDENTITY = Identity("1", "shop", "slot")


@pytest.fixture
def destination(server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(server)


@pytest.fixture
def nobody() -> int:
    if os.geteuid() != 0:
        pytest.skip("to make something another user's takes root")
    return 65534


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def as_user(number: int) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(number)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def modes(folder: Path) -> dict[Path, int]:
    """Everything in a folder that others use, too, with the folder."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISLNK(status.st_mode):
            found[path] = stat.S_IMODE(status.st_mode)
    return found


def wrong(found: dict[Path, int], folders: int, files: int) -> dict[str, str]:
    return {
        str(path): oct(mode)
        for path, mode in found.items()
        if mode not in (folders, files) or (path.is_dir() and mode != folders)
    }


class Run:
    """`penstock run` with an umask, a home and a folder of temporary files of its own."""

    def __init__(self, file: Path, mask: int) -> None:
        self.folder = file.parent
        for name, mode in (("home", 0o755), ("tmp", 0o1777), ("work", 0o755)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        environ = os.environ | {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        environ.pop("XDG_CACHE_HOME", None)
        self._log = self.folder / "run.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*RUN, str(file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                umask=mask,
                env=environ,
                cwd=self.folder / "work",
            )

    def until(self, check: Callable[[], object]) -> Any:
        end = time.monotonic() + 150
        while not (found := check()):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0, self._log.read_text()


@pytest.mark.slow  # a home of its own: Java's archive of classes is made anew
@pytest.mark.parametrize(
    ("mask", "keys", "folders", "files"),
    [
        pytest.param(0o000, {}, 0o750, 0o640, id="umask 0"),
        pytest.param(0o077, {"mode": 0o664, "group": "daemon"}, 0o775, 0o664, id="umask 077"),
    ],
)
def test_what_a_pipeline_writes_has_its_mode_whatever_the_umask(
    database: Database,
    destination: Database,
    tmp_path: Path,
    mask: int,
    keys: dict[str, Any],
    folders: int,
    files: int,
) -> None:
    database.execute(
        "create table t (id int primary key, v text)",
        "insert into t select n, 'a' from generate_series(1, 9) n",
    )
    rules = {"public.t": {"set": {"v": "upper(v)"}}}
    lake = {"name": "lake", "type": "files", "base_path": str(tmp_path / "lake" / "base"), "tables": rules}
    source = {"name": "source", "dsn": f"{database.dsn} options='-c logical_decoding_work_mem=64kB'"}
    file = configuration(
        tmp_path, database, lake | keys, to_postgres(destination, tables=rules), sources=[source]
    )
    (tmp_path / "state.db").touch()
    (tmp_path / "state.db").chmod(0o644)  # as an earlier version left it
    spool = tmp_path / "spool" / "test" / "source"
    run = Run(file, mask)
    try:
        run.until(lambda: contents(destination, "t") == [f"({n},A)" for n in range(1, 10)])
        with destination.connect() as reader, database.connect() as writer:
            reader.execute("begin; lock table t in access exclusive mode")
            database.execute("insert into t values (10, 'b')")
            writer.execute(
                "begin; insert into t select n, repeat('x', 500) from generate_series(100, 2000) n"
            )
            run.until(lambda: list(spool.glob("transformed/copy/**/*.arrow")))
            run.until(lambda: list(spool.glob("spill/*.spill")))
            private_ones = modes(tmp_path / "spool") | {
                path: mode for path in tmp_path.glob("state.db*") for mode in modes(path).values()
            }
            reader.execute("rollback")
            writer.execute("rollback")
            temporary = {path: path.lstat().st_mode & 0o777 for path in (tmp_path / "tmp").iterdir()}
        streamed = "select 1 from cdc_registry.file_log where file_type = 'streaming'"
        run.until(lambda: database.query(streamed))
    finally:
        run.stop()
    for found in (private_ones, modes(tmp_path / "spool")):
        assert wrong(found, 0o700, 0o600) == {}
    names = {path.name for path in private_ones}
    assert {"manifest.db", "manifest.db-wal", "capture.log", "capture.json", "lock"} <= names
    assert {"spark.log", "state.db", "state.db-wal", "state.db-shm", "state.db.test.lock"} <= names
    assert set(temporary.values()) <= {0o700, 0o600}, temporary
    assert [path.name[:15] for path in temporary].count("penstock-spark-") == 1
    assert [path.name[:15] for path in temporary].count("penstock-query-") == 2
    assert (tmp_path / "home" / ".cache" / "penstock").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "work").iterdir()) == [], "nothing where it was started"
    delivered = modes(tmp_path / "lake")
    assert {path.name for path in delivered} >= {".penstock", "schema.yml", "full_reload.csv.gz"}
    assert wrong(delivered, folders, files) == {}
    group = grp.getgrnam("daemon").gr_gid if keys else os.getegid()
    assert {path.stat().st_gid for path in delivered if path != tmp_path / "lake"} == {group}


# What is there already


def test_what_an_earlier_version_left_is_tightened(tmp_path: Path) -> None:
    spool = tmp_path / ".penstock" / "spool" / "shop" / "eu"
    with umask(0):
        spool.mkdir(parents=True)
        Manifest.create(spool, IDENTITY, Lsn(1)).close()
        (spool / "manifest.db").chmod(0o666)
        (spool / "spill").mkdir()
        for name in ("000000000001.arrow", "capture.log", "lock", "spill/7.spill"):
            (spool / name).write_text("1")
        for path in (tmp_path / ".penstock").rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (tmp_path / ".penstock").chmod(0o777)
    above = stat.S_IMODE(tmp_path.stat().st_mode)
    with closing(SpoolWriter(spool, IDENTITY, Lsn(1))):
        assert wrong(modes(tmp_path / ".penstock"), 0o700, 0o600) == {}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == above


def test_a_folder_that_is_not_ours_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    private.folder(shared / "spool" / "shop")
    with Store.open(f"sqlite:///{shared}/state.db", "shop", exclusive=True):
        assert oct(shared.stat().st_mode & 0o777) == "0o755"
        assert wrong(modes(shared / "spool"), 0o700, 0) == {}
        assert {mode for path in shared.glob("state.db*") for mode in modes(path).values()} == {0o600}


def test_a_spool_or_state_of_another_user_is_refused(tmp_path: Path, nobody: int) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    os.chown(spool, nobody, -1)
    with pytest.raises(NotPrivate, match="belongs to user nobody, and this process is user root"):
        SpoolWriter(spool, IDENTITY, Lsn(1))
    assert list(spool.iterdir()) == []
    os.chown(spool, 0, -1)
    (spool / "manifest.db").touch()
    os.chown(spool / "manifest.db", nobody, -1)
    with pytest.raises(NotPrivate, match="belongs to user nobody"):
        SpoolWriter(spool, IDENTITY, Lsn(1))
    state = tmp_path / "state.db"
    for planted in (state, tmp_path / "state.db.shop.lock"):
        planted.touch()
        os.chown(planted, nobody, -1)
        with (
            pytest.raises(NotPrivate, match="belongs to user nobody"),
            Store.open(f"sqlite:///{state}", "shop", exclusive=True),
        ):
            pass
        os.chown(planted, 0, -1)


def test_a_place_where_everybody_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotPrivate, match="everybody may write") as told:
        private.folder(tmp_path / "open" / "spool" / "shop")
    assert f"Run: chmod o-w {tmp_path}/open" in str(told.value)
    with pytest.raises(NotPrivate, match="everybody may write"):
        private.file(tmp_path / "open" / "state.db")
    (tmp_path / "open" / "spool").mkdir()
    with pytest.raises(NotPrivate, match="everybody may write"):
        private.folder(tmp_path / "open" / "spool")
    (tmp_path / "open").chmod(0o1777)
    assert private.folder(tmp_path / "open" / "spool" / "shop").stat().st_mode & 0o777 == 0o700
    private.file(tmp_path / "open" / "state.db")


def test_check_tells_of_a_place_that_we_may_not_enter(tmp_path: Path, nobody: int) -> None:
    spool = private.folder(tmp_path / "spool" / "shop")
    with as_user(nobody), pytest.raises(NotPrivate, match="user nobody may not enter its folder"):
        private.look(spool)
    os.chown(spool, nobody, -1)
    with pytest.raises(NotPrivate, match="belongs to user nobody"):
        private.look(spool)


def test_links_of_others_are_not_followed(tmp_path: Path, nobody: int) -> None:
    """In a folder where everybody may make one, or in a spool that was open to all."""
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o755)
    spool = private.folder(tmp_path / "spool")
    for link in (tmp_path / "link", spool / "link"):
        link.symlink_to(target)
        os.chown(link, nobody, -1, follow_symlinks=False)
    with pytest.raises(NotPrivate, match="belongs to user nobody"):
        private.folder(tmp_path / "link")
    with pytest.raises(NotPrivate, match="belongs to user nobody"):
        SpoolWriter(spool, IDENTITY, Lsn(1))
    (spool / "link").unlink()
    (spool / "link").symlink_to(target)
    (spool / "lock").symlink_to(target / "made")
    with pytest.raises(OSError, match="symbolic links"):
        SpoolWriter(spool, IDENTITY, Lsn(1))
    assert (oct(target.stat().st_mode & 0o777), list(target.iterdir())) == ("0o755", [])


# Caches


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No home to write to: the folder of temporary files has to do."""
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    jvm._of_this_process.cache_clear()
    return tmp_path / "tmp"


def test_a_cache_is_made_where_there_is_none(homeless: Path) -> None:
    with umask(0):
        folder = jvm.cache_folder()
    assert folder == homeless / f"penstock-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def planted(folder: Path, java: jvm.Java) -> Path:
    """The script that we would run, as an attacker puts it there."""
    script = folder / f"java-{java.version}-{jvm._short_hash(str(java.program))}" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\ntouch /tmp/owned\n")
    return script


@pytest.mark.parametrize("attack", ["another's", "open to all", "open to the group", "a link"])
def test_a_cache_that_another_could_have_written_to_is_not_used(
    homeless: Path, nobody: int, attack: str
) -> None:
    java = jvm.Java(Path("/opt/java/bin/java"), 21)
    known = homeless / f"penstock-{os.geteuid()}"
    folder = homeless / "elsewhere" if attack == "a link" else known
    script = planted(folder, java)
    if attack in ("another's", "a link"):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody, -1)
    if attack == "a link":
        known.symlink_to(folder)
    if attack.startswith("open"):
        folder.chmod(0o777 if attack == "open to all" else 0o775)
    before = modes(folder)
    home = jvm.java_home(java)
    assert not home.is_relative_to(known)
    assert not home.resolve().is_relative_to(folder)
    assert (home / "bin" / "java").read_text() != script.read_text()
    assert home.parent.stat().st_mode & 0o777 == 0o700
    assert jvm.cache_folder() == home.parent, "one for the whole process"
    assert modes(folder) == before


def test_a_script_that_another_could_have_written_is_made_anew(homeless: Path, nobody: int) -> None:
    java = jvm.Java(Path("/opt/java/bin/java"), 21)
    script = jvm.java_home(java) / "bin" / "java"
    for mode, owner in ((0o777, 0), (0o700, nobody)):
        script.chmod(mode)
        os.chown(script, owner, -1)
        jvm.java_home(java)
        assert (script.stat().st_uid, script.stat().st_mode & 0o777) == (0, 0o700)
        assert script.is_relative_to(homeless)


# Delivered files


def test_the_base_path_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o2755)
    storage = Storage(str(base), "lake", permissions=Permissions(0o600))
    with umask(0):
        storage.claim("me", anew=True)
        storage.write("a/b/file", [b"x"])
    assert stat.S_IMODE(base.stat().st_mode) == 0o2755
    assert oct((base / "a").stat().st_mode & 0o7777) == "0o2700", "the group is handed down"
    assert (base / "a" / "b" / "file").stat().st_mode & 0o777 == 0o600


def test_a_group_that_is_none_is_refused_and_found_by_check(database: Database, tmp_path: Path) -> None:
    lake = {"name": "lake", "type": "files", "base_path": str(tmp_path / "lake"), "group": "no-such-group"}
    config = load(configuration(tmp_path, database, lake))
    checks = {check.name: check for check in preflight.run(config, config.destinations[0])}
    assert (checks["group"].outcome, "there is no group" in checks["group"].detail) == ("failure", True)
    with pytest.raises(ConfigError, match="there is no group no-such-group on this machine"):
        Storage(str(tmp_path / "lake"), "lake", permissions=Permissions(group="no-such-group")).claim(
            "me", anew=True
        )


def test_a_group_that_we_are_not_in_is_refused(nobody: int) -> None:
    with as_user(nobody):
        assert Permissions(group=nobody).find_group() == nobody
        with pytest.raises(ConfigError, match="is not in the group daemon"):
            Permissions(group="daemon").find_group()
    assert Permissions(group="daemon").find_group() == grp.getgrnam("daemon").gr_gid

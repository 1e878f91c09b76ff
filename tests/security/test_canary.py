"""A password and a value of every row, looked for wherever they do not belong while everything goes wrong."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import yaml

from penstock.model.phases import Phase
from penstock.state.store import Store, TableState
from tests.bed import Database, fresh_database
from tests.pipeline.running import contents

VALUE = "c4nary-v4lue"
TABLES = ("plain", "checked", "typed", "cast", "cast_first")
FORGED = "x\n2026-01-01 00:00:00 [info     ] all is well\x1b[2J[/red]"

RAISING = """
class Unforeseen(Exception):
    def __str__(self):
        return 1 / 0

class Raising:
    name = "raising"

    def truncate_table(self, table): ...

    def write_table_rows(self, table, rows):
        copied = rows.collect()
        if str(table.name) == "public.plain" and not hasattr(self, "copied"):
            self.copied = True
            raise RuntimeError("not this copy")
        if str(table.name) == "public.checked":
            raise Unforeseen(copied)

    def write_events(self, batch):
        events = list(batch.events())
        if not hasattr(self, "written"):
            self.written = True
            raise RuntimeError("not this batch")
"""


@pytest.fixture
def source(database: Database) -> Database:
    return database


@pytest.fixture
def destination(database: Database) -> Iterator[Database]:
    yield from fresh_database(database.server)


@pytest.fixture
def store(database: Database) -> Iterator[Database]:
    yield from fresh_database(database.server)


class Watch:
    """Whether a canary is in the arguments or the environment of a process that ours has started."""

    def __init__(self, process: psutil.Process, canaries: list[str]) -> None:
        self.found: set[tuple[str, str, str]] = set()
        self.seen: set[str] = set()
        self._process = process
        self._canaries = [canary.encode() for canary in canaries]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            self._look(self._process, "cmdline")
            with suppress(psutil.Error):
                for child in self._process.children(recursive=True):
                    self._look(child, "cmdline", "environ")

    def _look(self, process: psutil.Process, *files: str) -> None:
        with suppress(psutil.Error, OSError):
            if process != self._process and process.cmdline() == self._process.cmdline():
                return  # about to become another program
            name = " ".join(process.cmdline())
            self.seen |= {one for one in ("java", "penstock.spark.daemon", "penstock.capture") if one in name}
            for file in files:
                read = Path(f"/proc/{process.pid}/{file}").read_bytes()
                self.found |= {(file, name[:200], str(one)) for one in self._canaries if one in read}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class Canary:
    """A pipeline from a source to a database, files and a class, all of it in one folder."""

    def __init__(self, folder: Path, source: Database, destination: Database, store: Database) -> None:
        self.folder = folder
        self.file = folder / "pipeline.yaml"
        self.password = source.server.password
        self.log = folder / "log"
        self.state_url = source.server.url(store.name)
        self.printed: list[str] = []
        (folder / "raising.py").write_text(RAISING)
        (folder / "tmp").mkdir()
        self.file.write_text(yaml.safe_dump(self._document(source, destination)))

    def _document(self, source: Database, destination: Database) -> dict[str, Any]:
        def at(database: Database, variable: str) -> dict[str, Any]:
            place = {"host": "127.0.0.1", "port": database.server.port, "dbname": database.name}
            return {**place, "user": "postgres", "password_env": variable}

        conf = {"spark.penstock.canary": self.password, "spark.local.dir": str(self.folder / "tmp")}
        return {
            "pipeline": "test",
            "sources": [{"name": "source", "connection": at(source, "SOURCE_PASSWORD")}],
            "destinations": [
                {
                    "name": "copy",
                    "type": "postgres",
                    "connection": at(destination, "COPY_PASSWORD"),
                    "tables": {"public.cast*": {"set": {"secret": "cast(int(secret) as string)"}}},
                },
                {"name": "files", "type": "files", "base_path": str(self.folder / "delivered")},
                {"name": "mine", "type": "python", "class": "raising.Raising"},
            ],
            "batch_control": {"interval": "50ms"},
            "spool": {"path": str(self.folder / "spool")},
            "spark": {"master": "local[2]", "conf": conf},
            "retry": {"initial": "100ms", "max": "1s", "attempts": 2},
        }

    @property
    def environment(self) -> dict[str, str]:
        secrets = {"SOURCE_PASSWORD": self.password, "COPY_PASSWORD": self.password}
        secrets |= {"PENSTOCK_STATE__URL": self.state_url}
        return os.environ | secrets | {"TMPDIR": str(self.folder / "tmp")}

    def penstock(self, *arguments: str) -> int:
        done = subprocess.run(
            [*PENSTOCK, *arguments], cwd=self.folder, env=self.environment, capture_output=True, timeout=120
        )
        self.printed += [done.stdout.decode(), done.stderr.decode()]
        return done.returncode

    @contextmanager
    def running(self) -> Iterator[psutil.Popen]:
        with self.log.open("ab") as log:
            process = psutil.Popen(
                [*PENSTOCK, "run", "-v", str(self.file)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        watch = Watch(psutil.Process(process.pid), [self.password, VALUE])
        try:
            yield process
        finally:
            process.kill() if process.poll() is None else None
            process.wait()
            watch.end()
        assert watch.found == set()
        assert watch.seen == {"java", "penstock.spark.daemon", "penstock.capture"}

    def tables(self, destination: str) -> dict[str, TableState]:
        with suppress(Exception), Store.open(self.state_url, "test", exclusive=False) as store:
            return {str(one.name): one for one in store.tables(destination=destination)}
        return {}

    def until(self, process: psutil.Popen, check: Callable[[], object], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not check():
            if process.poll() is not None:
                assert check(), self.log.read_text()
                return
            assert time.monotonic() < end, f"{self.tables('copy')}\n{self.log.read_text()[-5000:]}"
            time.sleep(0.6)

    def is_in(self, phase: Phase, destination: str, table: str) -> bool:
        found = self.tables(destination).get(table)
        return found is not None and found.phase is phase

    def logged(self) -> str:
        logs = [self.log, *(self.folder / "spool").rglob("*.log")]
        return "".join(log.read_text() for log in logs)

    def files(self) -> Iterator[Path]:
        """All that is neither the user's own, nor the spool's changes, nor what was delivered."""
        for path in self.folder.rglob("*"):
            inside = path.relative_to(self.folder)
            if inside.parts[0] in ("delivered", "pipeline.yaml", "raising.py") or not path.is_file():
                continue
            if not re.fullmatch(r"spool/.*(\.arrow|\.spill|manifest\.db.*)", str(inside)):
                yield path


PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def texts_of(database: Database, *schemas: str) -> Iterator[str]:
    """All that these schemas hold."""
    for schema, table in database.query(
        "select nspname, relname from pg_class c join pg_namespace n on n.oid = relnamespace"
        " where nspname = any(%s) and relkind = 'r'",
        list(schemas),
    ):
        yield from (row for (row,) in database.query(f'select t::text from "{schema}"."{table}" t'))


def test_the_canary_is_found_nowhere_but_in_spool_and_destination(
    source: Database, destination: Database, store: Database, tmp_path: Path
) -> None:
    forged = psycopg.sql.Identifier(FORGED).as_string()
    source.execute(
        *(f"create table public.{name} (id int primary key, secret text)" for name in TABLES),
        f"create table {forged} (id int primary key, secret text)",
        f"insert into plain select n, '{VALUE}' || n from generate_series(1, 3000) n",
        f"insert into checked values (1, '{VALUE}')",
        f"insert into cast_first values (1, '{VALUE}')",
        f"insert into {forged} values (1, '{VALUE}')",
    )
    destination.execute(  # one refuses the copy of a row, and says which; the other a change, and says it
        f"create table checked (id int primary key, secret text check (secret <> '{VALUE}'))",
        "create table typed (id int primary key, secret int)",
        f"create table {forged} (id int primary key, secret text check (secret <> '{VALUE}'))",
    )
    canary = Canary(tmp_path, source, destination, store)
    with canary.running() as process:
        # A copy, and copies that are refused; of one the class says no at first
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "copy", "public.checked"))
        for at in ("copy", "files", "mine"):
            canary.until(process, partial(canary.is_in, Phase.READY, at, "public.plain"))
        canary.until(process, partial(canary.is_in, Phase.READY, "copy", "public.typed"))
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "mine", "public.checked"))
        canary.until(process, partial(canary.is_in, Phase.READY, "copy", "public.cast"))
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "copy", "public.cast_first"))
        # A stream, and changes that are refused
        source.execute(
            f"insert into plain values (0, '{VALUE}')",
            f"insert into typed values (1, '{VALUE}')",
            f"insert into public.cast values (1, '{VALUE}')",
            f"update {forged} set secret = '{VALUE} again'",
        )
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "copy", "public.typed"))
        canary.until(process, lambda: f"(0,{VALUE})" in contents(destination, "plain"))
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "copy", "public.cast"))
        # A capture that is killed, a table that is gone
        (capture,) = [one for one in process.children() if "penstock.capture" in one.cmdline()]
        capture.send_signal(signal.SIGKILL)
        destination.execute("drop table plain")
        source.execute(f"insert into plain values (-1, '{VALUE}')")
        canary.until(process, partial(canary.is_in, Phase.ERRORED, "copy", "public.plain"))
        assert canary.penstock("status", str(canary.file)) == 0
        assert canary.penstock("status", str(canary.file), "--json") == 0
        canary.penstock("check", str(canary.file))
        canary.penstock("check", str(canary.file), "--json")
        in_between = [path.read_bytes() for path in canary.files()]
        # What nobody foresaw, in the capture and in a batch
        for file in (tmp_path / "spool").rglob("manifest.db"):
            with closing(sqlite3.connect(file, isolation_level=None)) as manifest:
                manifest.execute("alter table segments rename to gone")
        source.execute(f"insert into plain values (-2, '{VALUE}')")
        logs = [canary.log, *(tmp_path / "spool").rglob("capture.log")]
        canary.until(process, lambda: all("sqlite3.OperationalError" in log.read_text() for log in logs), 60)
        with suppress(psutil.Error):
            process.terminate()
        process.wait(60)
    canary.penstock("status", str(canary.file))

    printed = "".join(canary.printed) + canary.log.read_text()
    logged = printed + canary.logged()
    kept = [*texts_of(store, "penstock"), *texts_of(destination, "penstock")]
    kept += texts_of(source, "penstock", "cdc_registry")
    everything = {
        "printed": printed,
        "kept": "\n".join(kept),
        "in between": b"\n".join(in_between).decode("latin-1"),
    }
    everything |= {
        str(path.relative_to(tmp_path)): path.read_bytes().decode("latin-1") for path in canary.files()
    }
    found = {
        (where, one)
        for where, text in everything.items()
        for secret in (canary.password, VALUE)
        for one in re.findall(f".{{0,200}}{re.escape(secret)}.{{0,80}}", text)[:3]
    }
    assert found == set()
    assert "not this batch" in logged
    assert "not this copy" in logged
    assert "copy failed" in logged
    assert "ZeroDivisionError" in logged
    assert "a value is refused: invalid text representation" in logged
    assert "CAST_INVALID_INPUT, for a value of a row" in logged
    assert 'violates check constraint "checked_secret_check"' in logged
    assert "key id=1" in logged
    assert "all is well" in printed
    assert "\x1b" not in logged
    assert not [line for line in logged.split("\n") if line.startswith("2026-01-01 00:00:00")]

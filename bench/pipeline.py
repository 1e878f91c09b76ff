"""Our pipeline between the two servers: `penstock run` in a process of its own, as a user starts it.

Starting Spark takes seconds, and is not what most benchmarks are about. So a pipeline runs through all the
rounds of one, and takes turns with the other side: `hold` stops all of its processes where they are and
ends its replication connection, `release` lets them go on, connect again and deliver what has been committed
since. The other side, disabled and enabled, finds itself in the same place.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import yaml
from psycopg import sql

from bench.servers import SOURCE, NeverArrived, Servers
from penstock.config.models import default_slot_name
from penstock.model import Lsn
from penstock.model.phases import Phase
from penstock.postgres.connection import Connection
from penstock.spool.manifest import position
from penstock.state.store import Store

CORES = 2
STOPS_WITHIN = 60.0
STARTS_WITHIN = 600.0


@dataclass(frozen=True, slots=True)
class Copied:
    """When the copies began and when the last table was ready, as the store has it."""

    began: datetime
    ready: datetime

    @property
    def seconds(self) -> float:
        return (self.ready - self.began).total_seconds()


class Pipeline:
    """A pipeline with a slot, a spool, a state and a destination database of its own name."""

    def __init__(
        self,
        servers: Servers,
        name: str = "ours",
        interval: str = "1s",
        *,
        files: bool = False,
        nats: Mapping[str, object] | None = None,
    ) -> None:
        """To PostgreSQL, if not to files or to NATS, with the keys of such a destination."""
        self.database = name
        self._servers = servers
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir="/tmp"))
        self.files = self.folder / "files"
        """Where a pipeline to files writes them."""
        self._to_files = files
        self._nats = nats
        self._state = f"sqlite:///{self.folder / 'state.db'}"
        self._file = self.folder / "pipeline.yaml"
        self._file.write_text(yaml.safe_dump(self._configuration(interval)))
        self._process: subprocess.Popen[bytes] | None = None

    def _configuration(self, interval: str) -> dict[str, object]:
        """Spark waits longer than by default for signs of life: they do not come while it is held."""
        return {
            "pipeline": self.database,
            "sources": [
                {
                    "name": "source",
                    "dsn": self._servers.source.url(SOURCE),
                    "tables": {"include": ["public.*"]},
                    "ddl_capture": "off",
                }
            ],
            "destinations": [{"name": "destination", **self._destination()}],
            "batch_control": {"interval": interval},
            "spool": {"path": str(self.folder / "spool")},
            "state": {"url": self._state},
            "spark": {
                "master": f"local[{CORES}]",
                "conf": {"spark.network.timeout": "3600s", "spark.executor.heartbeatInterval": "60s"},
            },
            "monitoring": {"port": 0},
            "retry": {"initial": "100ms"},
        }

    def _destination(self) -> dict[str, object]:
        if self._to_files:
            return {"type": "files", "base_path": str(self.files)}
        if self._nats is not None:
            return {"type": "nats", **self._nats}
        return {"type": "postgres", "dsn": self._servers.destination.url(self.database)}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, once: bool = False) -> None:
        command = [sys.executable, "-c", "from penstock.cli import main; main()", "run", str(self._file)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--once"] if once else command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def dashboard(self) -> str:
        """Where its HTTP is served, once that is."""
        until = time.monotonic() + STARTS_WITHIN
        while not (found := re.findall(r"dashboard\s+url=(\S+)", (self.folder / "log").read_text())):
            self._go_on_waiting(until)
        return str(found[-1])

    def run_once(self) -> float:
        """Deliver what there is, from a cold start to the end of the process; how long that took."""
        began = time.perf_counter()
        self.start(once=True)
        self.wait()
        return time.perf_counter() - began

    def wait(self) -> None:
        assert self._process is not None
        if self._process.wait() != 0:
            raise NeverArrived(f"penstock run ended with {self._process.returncode}: {self._said()}")

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise NeverArrived(f"penstock run has ended: {self._said()}")

    def wait_until_ready(self, tables: int) -> None:
        """Until that many tables are copied and follow the stream."""
        until = time.monotonic() + STARTS_WITHIN
        while not (self.folder / "state.db").exists():
            self._go_on_waiting(until)
        with self._store() as store:
            while sum(table.phase is Phase.READY for table in store.tables()) < tables:
                self._go_on_waiting(until)

    def _go_on_waiting(self, until: float) -> None:
        self.check()
        if time.monotonic() > until:
            raise NeverArrived(f"the tables are not ready after {STARTS_WITHIN:.0f} s: {self._said()}")
        time.sleep(0.05)

    def copied(self, table: str | None = None) -> Copied:
        """Of one table, or from the first copy's begin to the last table's being ready."""
        began, ready = [], []
        with self._store() as store:
            for found in store.tables():
                if table in (None, found.name.name):
                    changes = store.history(found.key)
                    began += [change.at for change in changes if change.phase is Phase.DATA_SYNC]
                    ready += [change.at for change in changes if change.phase is Phase.READY]
        return Copied(min(began), max(ready))

    def _store(self) -> Store:
        return Store.open(self._state, self.database, exclusive=False)

    def hold(self) -> None:
        """The processes stop first: a capture that runs would connect again at once."""
        self._signal(signal.SIGSTOP)
        with self._servers.at_source() as connection:
            self._disconnect(connection)

    def release(self) -> None:
        self._signal(signal.SIGCONT)

    def capture(self) -> None:
        """Let the capture alone go on, until the spool has all that has committed."""
        with self._servers.at_source() as connection:
            row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("select pg_logical_emit_message(true, 'bench', 'end', true)")
        assert row is not None
        for process in psutil.Process(self.pid).children():
            if "penstock.capture" in process.cmdline():
                process.send_signal(signal.SIGCONT)
        until = time.monotonic() + STARTS_WITHIN
        spool = self.folder / "spool" / self.database / "source"
        while (reached := position(spool)) is None or reached <= Lsn.parse(row[0]):
            self._go_on_waiting(until)

    def stop(self) -> None:
        """In good order; what does not stop is killed, and that is an error."""
        if self._process is None or self._process.poll() is not None:
            return
        self.release()
        self._process.terminate()
        try:
            self._process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
            raise NeverArrived(f"penstock run did not stop within {STOPS_WITHIN:.0f} s") from None

    def remove(self) -> None:
        """Stop it, and take away everything of its own."""
        try:
            self.stop()
        finally:
            with self._servers.at_source() as connection:
                self._disconnect(connection)
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    " where slot_name = %s",
                    (self._slot,),
                )
                publication = sql.Identifier(self._slot)
                connection.execute(sql.SQL("drop publication if exists {}").format(publication))
                connection.execute("drop schema if exists cdc_registry, penstock cascade")
            self._servers.drop_database(self.database)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _disconnect(self, connection: Connection) -> None:
        """End whoever reads the slot."""
        connection.execute(
            "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots"
            " where slot_name = %s and active",
            (self._slot,),
        )

    @property
    def publication(self) -> str:
        return self._slot

    @property
    def _slot(self) -> str:
        return default_slot_name(self.database, "source")

    def _signal(self, number: signal.Signals) -> None:
        """From the top down: whoever has stopped starts no others."""
        driver = psutil.Process(self.pid)
        for process in [driver, *driver.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:].strip()

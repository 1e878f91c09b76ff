"""Capture into the durable spool, against pg_recvlogical to /dev/null.

Both read the same backlog with the same options, from slots made at the same position. pg_recvlogical only
receives; capture also decodes, compresses and makes durable. The clock runs from START_REPLICATION to the
end of the backlog: what a Python process needs to start is not in it. Memory is that of the capture process.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bench.report import ROUNDS, Case, compare, rate
from bench.servers import as_application
from penstock.capture import state
from penstock.capture.launch import CaptureProcess
from penstock.capture.spec import CaptureSpec
from penstock.embedded.postgres import PostgresServer
from penstock.model import Lsn
from penstock.postgres.connection import Connection
from penstock.spool import manifest

ROWS = 1_000_000
SETTINGS = {"fsync": "off", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
NARROW = "id bigint, a int, b int, c text, d text, e numeric, f timestamptz, g bool"
NARROW_ROW = "g, g % 100, g * 7, md5(g::text), 'name ' || g, g * 1.25, now(), g % 2 = 0"
WIDE = "id bigint, " + ", ".join(f"c{number} text" for number in range(49))
WIDE_ROW = "g, " + ", ".join(f"md5((g + {number})::text)" for number in range(49))


@dataclass(frozen=True, slots=True)
class Backlog:
    case: str
    changes: int
    columns: str
    before: str
    """Done before the slots are made."""
    load: str
    """What makes the backlog."""


def cases(rows: int | None) -> Iterator[Case]:
    with _server() as server:
        for backlog in _backlogs(rows or ROWS):
            yield _measure(server, backlog)


def _backlogs(rows: int) -> Iterator[Backlog]:
    wide, updates, tiny = max(rows // 10, 1), max(rows // 2, 1), max(rows // 5, 1)
    yield Backlog("narrow inserts", rows, NARROW, "", _in_thousands(NARROW_ROW, rows))
    yield Backlog("wide rows", wide, WIDE, "", _in_thousands(WIDE_ROW, wide))
    filled = f"insert into t select {NARROW_ROW} from generate_series(1, {updates}) g"
    yield Backlog(
        "updates, full identity",
        updates,
        NARROW,
        f"alter table t replica identity full; {filled}",
        "update t set a = a + 1",
    )
    one = f"insert into t select {NARROW_ROW} from generate_series(k, k) g"
    yield Backlog(
        "small transactions",
        tiny,
        NARROW,
        "",
        f"do $$ begin for k in 1..{tiny} loop {one}; commit; end loop; end $$",
    )
    yield Backlog(
        "one large transaction",
        rows * 5,
        NARROW,
        "",
        f"insert into t select {NARROW_ROW} from generate_series(1, {rows * 5}) g",
    )


def _in_thousands(row: str, rows: int) -> str:
    insert = f"insert into t select {row} from generate_series(k, least(k + 999, {rows})) g"
    return f"do $$ begin for k in 1..{rows} by 1000 loop {insert}; commit; end loop; end $$"


@contextmanager
def _server() -> Iterator[PostgresServer]:
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="penstock-bench-", dir="/tmp")), settings=SETTINGS)
    server.start()
    try:
        yield server
    finally:
        server.remove()


def _measure(server: PostgresServer, backlog: Backlog) -> Case:
    with as_application(server.dsn()) as connection:
        slots = iter([f"slot_{number}" for number in range(2 * ROUNDS)])
        end = _prepare(connection, backlog, 2 * ROUNDS)
        peak = [0.0]
        case = compare(
            backlog.case,
            "pg_recvlogical",
            lambda: _capture(server, backlog.changes, next(slots), end, peak),
            lambda: _recvlogical(server, backlog.changes, next(slots), end),
            memory=lambda: peak[0],
        )
        connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        connection.execute("drop publication p; drop table t; checkpoint")
    return case


def _prepare(connection: Connection, backlog: Backlog, slots: int) -> Lsn:
    """Make the table, the slots, then the backlog; returns where it ends."""
    connection.execute(f"create table t ({backlog.columns}, primary key (id))".encode())
    connection.execute("create publication p for table t")
    if backlog.before:
        connection.execute(backlog.before.encode())
    for number in range(slots):
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"slot_{number}",))
    connection.execute(backlog.load.encode())
    found = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")
    assert found is not None
    return Lsn.parse(found[0])


def _recvlogical(server: PostgresServer, changes: int, slot: str, end: Lsn) -> float:
    options = {"proto_version": "2", "publication_names": "p", "messages": "true", "streaming": "on"}
    command = [
        str(server.bin / "pg_recvlogical"), "--dbname", "postgres", "--slot", slot, "--start", "--no-loop",
        "--endpos", str(end), "--file", "/dev/null",
        *(part for key, value in options.items() for part in ("-o", f"{key}={value}")),
    ]  # fmt: skip
    environment = server.environment()
    return rate(
        changes, lambda: subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=environment)
    )


def _capture(server: PostgresServer, changes: int, slot: str, end: Lsn, peak: list[float]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder)
        spec = CaptureSpec(
            "bench", server.dsn(), slot=slot, publication="p", spool=spool, ack="spool", heartbeat=0
        )
        with closing(CaptureProcess(spec)) as process:
            process.wait_until_captured()
            while state.read(spool).get("state") != "streaming":
                time.sleep(0.001)
            begin = datetime.fromisoformat(state.read(spool)["since"]).timestamp()
            while (manifest.position(spool) or end) < end:
                process.check()
                time.sleep(0.02)
            seconds = time.time() - begin
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+)", status)
            peak[0] = int(found[1]) / 1024 if found else 0.0
    return changes / seconds

"""A backlog of inserts that a pipeline finds when it is released, and pg_recvlogical reading the same.

pg_recvlogical has a slot that was made before the backlog was written, and the pipeline's publication; what
it reads goes to /dev/null. No consumer of this stream can be faster than the walsender is there.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from bench.servers import SOURCE, Servers

TABLE = """
create table t (id bigint primary key, code uuid, name text, about text, amount numeric(14, 2),
                ratio double precision, made timestamptz, day date, flag bool)
"""
FILL = """
insert into t
select i, md5(i::text)::uuid, 'name ' || i, 'Customer no. ' || i || ', since ' || 1990 + i % 35 || '; ' ||
       (array['never paid late', 'asks for "invoices"', 'prefers e-mail', 'is on holiday'])[1 + i % 4],
       i * 1.25, i / 7.0, timestamptz '2026-01-01' + i * interval '1.7 second', date '2026-01-01' + i % 365,
       i % 3 = 0
from generate_series({first}, {last}) i
"""
RECEIVER = "pg_recvlogical to /dev/null"
_SLOT = "bench_backlog"


@dataclass(slots=True)
class Backlog:
    """Of one pipeline, as often as it takes one."""

    servers: Servers
    publication: str
    transaction: int = 1000
    """Rows of each."""
    written: int = 0
    """Rows so far."""

    def write(self, changes: int) -> None:
        """Write so many more rows; pg_recvlogical's slot begins before them."""
        self.drop_slot()
        with self.servers.at_source() as connection:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (_SLOT,))
            end = self.written + changes
            while self.written < end:
                last = min(self.written + self.transaction, end)
                connection.execute(FILL.format(first=self.written + 1, last=last).encode())
                self.written = last

    def receive(self) -> float:
        """Return the seconds that pg_recvlogical takes for what was written last."""
        with self.servers.at_source() as connection:
            row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")
        assert row is not None
        server = self.servers.source
        options = {"proto_version": "2", "publication_names": self.publication, "messages": "true"}
        began = time.perf_counter()
        subprocess.run(
            [
                str(server.bin / "pg_recvlogical"), "--dbname", SOURCE, "--slot", _SLOT, "--start",
                "--no-loop", "--endpos", row[0], "--file", "/dev/null",
                *(part for key, value in options.items() for part in ("-o", f"{key}={value}")),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            env=server.environment(),
        )  # fmt: skip
        return time.perf_counter() - began

    def drop_slot(self) -> None:
        with self.servers.at_source() as connection:
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s",
                (_SLOT,),
            )

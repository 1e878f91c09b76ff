"""`python -m bench.jdbc`: a table from one server to the other by Spark's own JDBC source and sink.

A process of its own, since a Spark session is one for a process. It gets the task as a line of JSON, says
`ready` when Spark is up and has the driver, then how many seconds the copy took. The session is set up as
Penstock's; the driver comes through `spark.jars.packages`.

The options are those that a user arrives at who reads the manuals: ranges of the key, a fetch size (without
it the driver keeps a whole partition in memory), a larger batch size, and the driver's own rewriting of
single inserts into those of many rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from penstock.embedded.postgres import PostgresServer

DRIVER = "org.postgresql:postgresql:42.7.14"
BATCH = "10000"


class Unavailable(Exception):
    """There is no Spark with that driver on this machine."""


@dataclass(frozen=True, slots=True)
class JdbcCopy:
    source: str = field(repr=False)
    """As JDBC writes it."""
    destination: str = field(repr=False)
    table: str
    rows: int
    """The keys are 1 to this."""
    partitions: int
    cores: int

    def run(self) -> float:
        """In a process of its own; how many seconds it took, without the start."""
        done = subprocess.run(
            [sys.executable, "-m", "bench.jdbc"],
            input=json.dumps(asdict(self)) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout.split()
        if "ready" not in said:
            raise Unavailable(_reason(done.stderr))
        done.check_returncode()
        return float(said[-1])


def jdbc_url(server: PostgresServer, database: str) -> str:
    """With the password in it: it goes to the process that copies by its standard input."""
    options = f"user=postgres&password={server.password}&reWriteBatchedInserts=true"
    return f"jdbc:postgresql://127.0.0.1:{server.port}/{database}?{options}"


def _reason(said: str) -> str:
    """The line that says what is missing, or the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in lines if "unresolved dependency" in line), (lines or ["no reason given"])[-1]
    )


def main() -> None:
    from penstock.spark.session import session

    copy = JdbcCopy(**json.loads(sys.stdin.readline()))
    spark = session(f"local[{copy.cores}]", {"spark.jars.packages": DRIVER}, app_name="bench jdbc")
    try:
        print("ready", flush=True)
        began = time.perf_counter()
        rows = (
            spark.read.format("jdbc")
            .options(url=copy.source, dbtable=copy.table, driver="org.postgresql.Driver", fetchsize=BATCH)
            .options(partitionColumn="id", lowerBound="1", upperBound=str(copy.rows + 1))
            .options(numPartitions=str(copy.partitions))
            .load()
        )
        (
            rows.write.format("jdbc")
            .options(
                url=copy.destination, dbtable=copy.table, driver="org.postgresql.Driver", batchsize=BATCH
            )
            .mode("append")
            .save()
        )
        print(time.perf_counter() - began, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

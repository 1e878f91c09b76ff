"""Makes a recording: what this version leaves on disk and in databases, for later versions to open.

    .venv/bin/python -m tests.upgrades.record

writes `recordings/<major.minor>.tar.gz` with `state.db`, `spool/`, `mirror.db`, `source.sql` and
`destination.sql`: a pipeline with its state in SQLite (`test`), to PostgreSQL and to files, one with its
state in PostgreSQL (`other`), and a mirror of a NATS destination. To be run once, when a release is made.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tarfile
import tempfile
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.embedded.postgres import PostgresServer, bundled_bin
from penstock.model import ZERO
from penstock.model.phases import Phase
from penstock.spark.session import session
from penstock.spool.manifest import Manifest
from tests.bed import Database, empty_nats, started_nats, started_server
from tests.consumer.staging import Stage, items, row, staged
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.state.conftest import url_of

RECORDINGS = Path(__file__).parent / "recordings"
TABLES = (
    "create table item (id integer primary key, label text)",
    "insert into item select n, 'row ' || n from generate_series(1, 20) n",
    "create table line (n integer primary key, body text)",
)
CHANGES = (
    "insert into item values (100, null), (101, '')",
    "update item set label = 'changed' where id = 5; delete from item where id = 6",
    "alter table line add column added text",
    "insert into line values (1, 'one', 'new'), (2, 'two', null)",
)


def dumped(database: Database) -> str:
    """The database as SQL that any session can run."""
    program = str(database.server.bin / "pg_dump")
    command = [program, "--inserts", "--no-owner", "--no-publications"]
    command += ["--no-privileges", "--dbname", database.dsn]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "".join(line for line in told.splitlines(keepends=True) if not line.startswith("\\"))


def record_pipeline(folder: Path, server: PostgresServer, spark: SparkSession) -> None:
    source, destination = Database(server, "source"), Database(server, "destination")
    for database in (source, destination):
        server.execute(f'create database "{database.name}"')
    source.execute(*TABLES)
    files = {"name": "files", "type": "files", "base_path": str(folder / "files")}
    whole = configuration(folder, source, to_postgres(destination), files)
    other = configuration(
        folder / "other",
        source,
        to_postgres(destination, schema="other", name="other"),
        **{"pipeline": "other", "state": {"url": url_of(destination)}},
    )
    for file, schema in ((whole, "public"), (other, "other")):
        with running(file, spark) as pipeline:
            if schema == "public":
                pipeline.until_phase(Phase.READY, "public.item", "public.line")
                with closing(Manifest.open(folder / "spool/test/source")) as manifest:
                    manifest.register("spark", manifest.position)
                source.execute(*CHANGES)
            for table in ("item", "line"):
                copy, expected = f"{schema}.{table}", contents(source, table)
                pipeline.until(partial(_has, destination, copy, expected))
    with closing(Manifest.open(folder / "spool/test/source")) as manifest:
        assert manifest.entries(manifest.consumers()["spark"], manifest.position)
        assert manifest.position > ZERO
    for database in (source, destination):
        (folder / f"{database.name}.sql").write_text(dumped(database))


def _has(database: Database, table: str, rows: list[str]) -> bool:
    return contents(database, table) == rows


def record_mirror(folder: Path) -> None:
    async def scenario(stage: Stage) -> None:
        table = items()
        await stage.producer.add(table)
        table.rows = [row(1), row(2)]
        await stage.check()
        at = stage.producer.begin()
        stage.producer.insert(at, table, row(3, "change"))
        stage.producer.commit(at)
        await stage.check()

    nats = started_nats()
    try:
        staged(nats, folder, scenario)
        empty_nats(nats)
    finally:
        nats.remove()


def main() -> None:
    os.environ["PENSTOCK_MONITORING__ENABLED"] = "false"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = started_server(bundled_bin())
        try:
            record_pipeline(folder, server, session("local[2]", {"spark.driver.memory": "768m"}))
        finally:
            server.remove()
        record_mirror(folder)
        for file in folder.rglob("*.db"):
            with closing(sqlite3.connect(file)) as database:
                database.execute("pragma wal_checkpoint(truncate)")
        release = ".".join(version("penstock").split(".")[:2])
        with tarfile.open(RECORDINGS / f"{release}.tar.gz", "w:gz") as archive:
            for kept in ("state.db", "mirror.db", "source.sql", "destination.sql"):
                archive.add(folder / kept, kept)
            for file in sorted((folder / "spool/test/source").iterdir()):
                if file.suffix in (".arrow", ".db"):
                    archive.add(file, f"spool/{file.name}")


if __name__ == "__main__":
    main()

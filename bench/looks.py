"""What a look at the tables costs the source's server, which the pipeline takes every two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench.report import Case, compare
from bench.servers import ROLE, Servers
from penstock.config import SourceConfig
from penstock.pipeline.catalog_look import Look
from penstock.postgres.connection import Connection, connect

TABLES = 1000
COLUMNS = 20
REPEATED = 10
DATABASE = "looked_at"

# As PostgreSQL 15 and later ask for the tables of a publication (`fetch_table_list`).
REFRESH = """
    select distinct n.nspname, c.relname, gpt.attrs
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join (select (pg_get_publication_tables(variadic array_agg(pubname::text))).*
          from pg_publication where pubname in ('looked_at')) as gpt on gpt.relid = c.oid
"""


def cases(servers: Servers, tables: int) -> Iterator[Case]:
    servers.source.execute(f"create database {DATABASE}")
    dsn = servers.source.dsn(DATABASE, user=ROLE)
    columns = ", ".join(f"c{number} varchar({number + 5})" for number in range(COLUMNS))
    with connect(dsn) as connection:
        with connection.pipeline():
            for number in range(tables):
                connection.execute(
                    f"create table public.t_{number:05} (id bigint primary key, {columns})".encode()
                )
        connection.execute("vacuum analyze")
    given = {"name": "source", "dsn": dsn, "replication": {"publication_name": DATABASE}}
    source = SourceConfig.model_validate(given)
    with connect(dsn) as ours, connect(dsn) as theirs:
        look = Look(source, lambda _: None)
        found = look.take(ours)
        assert len(found.tables) == tables
        yield compare(
            f"a look at {tables:,} tables of {COLUMNS + 1} columns, the server's CPU",
            "the query of refresh publication",
            lambda: _milliseconds(ours, lambda: look.take(ours)),
            lambda: _milliseconds(theirs, lambda: theirs.execute(REFRESH).fetchall()),
            unit="ms",
        )


def _milliseconds(connection: Connection, work: Callable[[], object]) -> float:
    """The median CPU time of its server process for this."""
    spent = Path(f"/proc/{connection.info.backend_pid}/schedstat")

    def once() -> float:
        before = int(spent.read_text().split()[0])
        work()
        return (int(spent.read_text().split()[0]) - before) / 1e6

    return median(once() for _ in range(REPEATED))

"""The checks behind `penstock check`: whether a source can be captured as it is, and what to do if not.

Each check is a small function from a `Situation` to a `Check`, or to None where it does not apply. They run
in one read-only transaction and change nothing on the server; what a check cannot find out is a failure of
that check alone.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from penstock.config import SourceConfig
from penstock.model import Lsn
from penstock.model.errors import PenstockError
from penstock.postgres import catalog
from penstock.postgres.connection import connect, explain, replication_conninfo
from penstock.postgres.preflight import disk, replication, server, tables
from penstock.postgres.preflight.check import Check, Outcome, Situation, attempt, failure, ok, where
from penstock.postgres.preflight.tls import tls

__all__ = ["Check", "Outcome", "Situation", "run"]

CHECKS = (*server.CHECKS, *tables.CHECKS, *replication.CHECKS, *disk.CHECKS)


def run(source: SourceConfig, spool: Path, captured: Lsn | None = None) -> list[Check]:
    """Every check for one source, in order. Without a connection there is one only.

    `captured` is how far the spool has its changes, if there is one: the slot must have what follows.
    """
    try:
        with connect(source.conninfo(), autocommit=False) as connection:
            connection.read_only = True
            connection.execute("set local statement_timeout = '30s'")
            tables = catalog.matching(connection, source.tables)
            situation = Situation(connection, source, spool, tables, captured)
            checks = (attempt(connection, check, situation) for check in CHECKS)
            found = [
                ok("connection", f"{connection.info.dbname} on {where(connection.info)}"),
                attempt(connection, tls, connection),
                *_replication_connection(source),
                *checks,
            ]
            return list(
                dict.fromkeys(check for check in found if check)
            )  # both connections have the same TLS
    except PenstockError as error:
        return [failure("connection", error.reason, error.remedy)]
    except psycopg.Error as error:
        return [failure("connection", explain(error).reason, "")]


def _replication_connection(source: SourceConfig) -> list[Check | None]:
    """A walsender answers: the role may replicate, and pg_hba.conf lets it in."""
    name = "replication connection"
    try:
        with psycopg.connect(replication_conninfo(source.conninfo()), autocommit=True) as connection:
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
            return [ok(name, f"system {row[0]}, timeline {row[1]}" if row else ""), tls(connection)]
    except psycopg.Error as error:
        explained = explain(error)
        return [failure(name, explained.reason, explained.remedy)]

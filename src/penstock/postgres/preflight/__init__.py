"""The checks behind `penstock check`: whether a source can be captured as it is, and what to do if not.

Each check is a small function from a `Situation` to a `Check`, or to None where it does not apply. They run
in one read-only transaction and change nothing on the server; what a check cannot find out is a failure of
that check alone.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from penstock.config import SourceConfig
from penstock.model import Reached
from penstock.model.errors import ConnectionFailed, PenstockError, SlotLost
from penstock.postgres import catalog, timeline
from penstock.postgres.connection import connect, connect_replication, explain
from penstock.postgres.preflight import disk, replication, server, tables
from penstock.postgres.preflight.check import Check, Outcome, Situation, attempt, failure, ok, warning, where
from penstock.postgres.preflight.tls import tls

__all__ = ["Check", "Outcome", "Situation", "run"]

CHECKS = (*server.CHECKS, *tables.CHECKS, *replication.CHECKS, *disk.CHECKS)


def run(source: SourceConfig, spool: Path, captured: Reached | None = None) -> list[Check]:
    """Run every check for one source, in order. Without a connection there is only that one.

    `captured` is how far the spool has its changes, if there is one: the slot must have what follows, and the
    server what came before.
    """
    try:
        with connect(source.conninfo(), autocommit=False) as connection:
            connection.read_only = True
            connection.execute("set local statement_timeout = '30s'")
            tables = catalog.matching(connection, source.tables)
            situation = Situation(connection, source, spool, tables, captured.position if captured else None)
            checks = (attempt(connection, check, situation) for check in CHECKS)
            results = [
                ok("connection", f"{connection.info.dbname} on {where(connection.info)}"),
                attempt(connection, tls, connection),
                *_replication_connection(source, captured),
                *checks,
            ]
            return list(
                dict.fromkeys(check for check in results if check)
            )  # both connections have the same TLS
    except PenstockError as error:
        return [failure("connection", error.reason, error.remedy)]
    except psycopg.Error as error:
        return [failure("connection", explain(error).reason, "")]


def _replication_connection(source: SourceConfig, captured: Reached | None) -> list[Check | None]:
    """Check that the role may replicate, that pg_hba.conf lets it in, and that it is the same server."""
    name = "replication connection"
    try:
        with connect_replication(source.conninfo()) as connection:
            ask = timeline.asking(connection.pgconn)
            server = timeline.identify(ask)
            answered = ok(name, f"system {server.system_id}, timeline {server.timeline}")
            return [answered, tls(connection), _history(source, ask, server, captured)]
    except (PenstockError, psycopg.Error) as error:
        explained = error if isinstance(error, PenstockError) else explain(error)
        return [failure(name, explained.reason, explained.remedy)]


def _history(
    source: SourceConfig, ask: timeline.Ask, server: timeline.Server, captured: Reached | None
) -> Check | None:
    """Whether the server has what the spool has from it."""
    if captured is None:
        return None
    try:
        timeline.check(ask, server, captured)
    except SlotLost as error:
        if source.replication.on_slot_lost == "resync":
            return warning("history", error.reason, "Nothing to do: `on_slot_lost: resync` copies the tables")
        return failure("history", error.reason, error.remedy)
    except ConnectionFailed as error:
        return warning("history", error.reason, error.remedy)
    return ok("history", f"has what was captured up to {captured.position}")

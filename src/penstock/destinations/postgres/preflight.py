"""The checks of `penstock check` for a PostgreSQL destination: whether this role can deliver there.

As for sources, each check is a small function from what it looks at to a `Check`, or to None where it does
not apply; they run in one read-only transaction and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from penstock.config import DestinationConfig
from penstock.destinations.postgres.copy.table_copy import SCHEMA
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.session import OLDEST
from penstock.model import TableName
from penstock.model.errors import PenstockError
from penstock.postgres.connection import Connection, connect, explain
from penstock.postgres.preflight.check import Check, attempt, failure, ok, some, warning, where
from penstock.postgres.preflight.tls import tls


@dataclass(frozen=True, slots=True)
class DestinationSituation:
    """The destination as it stands, and what is to arrive there."""

    connection: Connection
    targets: Sequence[TableName]
    """The tables as they are called here; none are known where no source could be asked."""
    create_tables: bool

    def one(self, statement: LiteralString, *values: Any) -> Any:
        row = self.connection.execute(statement, values).fetchone()
        return row[0] if row else None

    def may_create_in(self, schema: str) -> bool:
        """Whether a table can be made there, the schema with it if need be."""
        return bool(
            self.one(
                """
                select coalesce(
                    (select has_schema_privilege(oid, 'create') and has_schema_privilege(oid, 'usage')
                     from pg_namespace where nspname = %s),
                    has_database_privilege(current_database(), 'create'))
                """,
                schema,
            )
        )


def run(config: DestinationConfig, targets: Sequence[TableName]) -> list[Check]:
    """Run every check for one destination, in order. Without a connection there is only that one."""
    options: PostgresOptions = config.settings(PostgresOptions)
    try:
        with connect(options.conninfo(), autocommit=False) as connection:
            connection.read_only = True
            connection.execute("set local statement_timeout = '30s'")
            now = DestinationSituation(connection, targets, options.create_tables)
            info = connection.info
            checks = (attempt(connection, check, now) for check in CHECKS)
            return [
                ok("connection", f"{info.dbname} on {where(info)}"),
                *(check for check in (attempt(connection, tls, connection), *checks) if check),
            ]
    except PenstockError as error:
        return [failure("connection", error.reason, error.remedy)]
    except psycopg.Error as error:
        return [failure("connection", explain(error).reason, "")]


def version(now: DestinationSituation) -> Check:
    shown = f"PostgreSQL {now.one('show server_version')}"
    if now.connection.info.server_version < OLDEST:
        return failure("version", shown, "The destination `postgres` needs PostgreSQL 15 or later")
    return ok("version", shown)


def writable(now: DestinationSituation) -> Check | None:
    if now.one("select pg_is_in_recovery()"):
        return failure(
            "writable", "the server is a standby", "Name the primary; target_session_attrs finds it"
        )
    if now.one("select setting = 'on' from pg_settings where name = 'default_transaction_read_only'"):
        return failure("writable", "sessions are read-only", "Set default_transaction_read_only = off")
    return None


def own_schema(now: DestinationSituation) -> Check:
    """Check the schema in which positions are kept."""
    name = f"schema {SCHEMA}"
    there = now.one("select count(*) from pg_namespace where nspname = %s", SCHEMA)
    if not now.may_create_in(SCHEMA):
        remedy = "grant create, usage on schema penstock to …" if there else "grant create on database … to …"
        detail = "the role may not create tables in it" if there else "it cannot be created by this role"
        return failure(name, detail, f"Run: {remedy}")
    if not there:
        return ok(name, "will be created")
    rows = now.connection.execute(
        """
        select c.relname from pg_class c
        where c.relnamespace = %s::regnamespace and c.relkind = 'r'
          and c.relname in ('streams', 'tables', 'copies', 'copied')
          and not (has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
                   and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete'))
        """,
        (SCHEMA,),
    )
    denied = [row[0] for row in rows]
    if denied:
        detail = f"the role may not read and write {some(denied)}"
        return failure(
            name, detail, "Run: grant select, insert, update, delete on all tables in schema penstock to …"
        )
    return ok(name, "is there")


def tables(now: DestinationSituation) -> Check | None:
    """Check that tables which are there can be written to, and that the others can be made."""
    if not now.targets:
        return None
    there, denied = _existing(now)
    missing = [table for table in now.targets if table not in there]
    if missing and not now.create_tables:
        detail = f"{some(missing)} not there, and create_tables is false"
        return failure("tables", detail, "Create them, or set create_tables: true")
    closed = [schema for schema in {table.schema for table in missing} if not now.may_create_in(schema)]
    if closed:
        remedy = (
            "Run: grant create, usage on schema … to …; for a schema to be made: grant create on database …"
        )
        return failure("tables", f"the role may not create tables in the schema {some(closed)}", remedy)
    if denied:
        remedy = "Run: grant select, insert, update, delete, truncate on table … to …"
        return failure("tables", f"the role may not read and write {some(denied)}", remedy)
    return ok("tables", f"there: {len(there)}, to be created: {len(missing)}")


def _existing(now: DestinationSituation) -> tuple[set[TableName], list[TableName]]:
    """Return the targets that are there, and those of them that the role may not write to."""
    rows = now.connection.execute(
        """
        select n.nspname, c.relname,
               has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
               and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete')
               and has_table_privilege(c.oid, 'truncate')
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'v', 'm', 'f')
          and (n.nspname, c.relname) in (select * from unnest(%s::text[], %s::text[]))
        """,
        ([table.schema for table in now.targets], [table.name for table in now.targets]),
    ).fetchall()
    existing = {TableName(schema, name): writable for schema, name, writable in rows}
    return set(existing), [table for table, writable in existing.items() if not writable]


def temporary(now: DestinationSituation) -> Check | None:
    """Check that temporary tables can be made: many changes at once go through one."""
    if now.one("select has_database_privilege(current_database(), 'temporary')"):
        return None
    remedy = "Run: grant temporary on database … to …"
    return failure("temporary tables", "the role may not create them in this database", remedy)


def replication_role(now: DestinationSituation) -> Check | None:
    """Check whether the role may write as PostgreSQL's own replication does."""
    name = "session_replication_role"
    if now.connection.info.server_version < OLDEST:
        return None  # the server cannot be asked, and is refused anyway
    if now.one("select has_parameter_privilege('session_replication_role', 'set')"):
        return ok(name, "triggers and foreign keys stay out of the way")
    return warning(
        name,
        "the role may not set it: triggers and foreign keys of the tables are at work for every row",
        "Run as a superuser: grant set on parameter session_replication_role to …",
    )


CheckFunction = Callable[[DestinationSituation], Check | None]

CHECKS: tuple[CheckFunction, ...] = (version, writable, own_schema, tables, temporary, replication_role)

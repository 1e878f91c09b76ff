"""Whose an object at a server is: what we use by name must be ours, or a superuser's.

A table that belongs to somebody else may be a view, or have triggers, rules and checks: whatever its owner
put there runs with our rights as soon as we read or write it. So a schema, table or function that has the
name of one of ours and another owner is refused, not used.

The administrators of managed servers are no superusers, but nobody above them is a user: they count as such
where the provider's own superuser is there, whom no ordinary role can make.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psycopg
from psycopg import sql

from penstock.model.errors import NotReady
from penstock.postgres.connection import Connection

_AT_ONCE = (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation)
"""Somebody else made it at the same moment. (A lock to keep them apart would be anybody's to hold.)"""

_MANAGED = (
    ("rdsadmin", "rds_superuser"),
    ("cloudsqladmin", "cloudsqlsuperuser"),
    ("azuresu", "azure_pg_admin"),
    ("supabase_admin", "postgres"),
)
"""A provider's own superuser, and the role that its customers' administrators are members of."""

_MANAGED_ADMINS = sql.SQL("values {}").format(
    sql.SQL(", ").join(sql.SQL("({}, {})").format(*map(sql.Literal, pair)) for pair in _MANAGED)
)


def is_trusted(owner: sql.Composable) -> sql.Composed:
    """SQL: whether a role, by its oid, is ours or above us. `pg_database_owner`, to whom `public` belongs
    from PostgreSQL 15 on, stands for whoever owns the database."""
    return sql.SQL(
        """
        (select r.rolsuper or r.rolname operator(pg_catalog.=) current_user or exists (
             select from ({managed}) m (superuser, admin)
             join pg_catalog.pg_roles s on s.rolname operator(pg_catalog.=) m.superuser and s.rolsuper
             join pg_catalog.pg_roles a on a.rolname operator(pg_catalog.=) m.admin
             where pg_catalog.pg_has_role(r.oid, a.oid, 'member'))
         from pg_catalog.pg_roles o
         join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=)
              case when o.rolname operator(pg_catalog.=) 'pg_database_owner' then (
                  select d.datdba from pg_catalog.pg_database d
                  where d.datname operator(pg_catalog.=) pg_catalog.current_database()) else o.oid end
         where o.oid operator(pg_catalog.=) {owner})
        """
    ).format(managed=_MANAGED_ADMINS, owner=owner)


def make_schema(connection: Connection, schema: str) -> None:
    """Make the schema if it is missing. `if not exists` asks for the right even then, and fails if somebody
    else makes the same one now."""
    row = connection.execute("select from pg_namespace where nspname = %s", (schema,)).fetchone()
    if row is None:
        with suppress(*_AT_ONCE), connection.transaction():
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))


def check(connection: Connection, schema: str, tables: Iterable[str]) -> None:
    """Raise `NotReady` if the schema, or one of these tables in it, is somebody else's: who owns a schema can
    drop what is in it and make another one of that name. To be asked when the schema is there: nobody else
    makes anything in one that is ours, but before that it may become another's."""
    row = connection.execute(
        sql.SQL(
            """
            select 'schema', n.nspname, pg_get_userbyid(n.nspowner)
            from pg_namespace n
            where n.nspname = %(schema)s and not {of_schema}
            union all
            select case c.relkind when 'v' then 'view' else 'table' end,
                   n.nspname || '.' || c.relname, pg_get_userbyid(c.relowner)
            from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = %(schema)s and c.relname = any (%(tables)s) and not {of_table}
            """
        ).format(
            of_schema=is_trusted(sql.SQL("n.nspowner")),
            of_table=is_trusted(sql.SQL("c.relowner")),
        ),
        {"schema": schema, "tables": list(tables)},
    ).fetchone()
    if row is not None:
        raise somebody_elses(*row)


def somebody_elses(kind: str, name: str, owner: str) -> NotReady:
    return NotReady(
        f"the {kind} {name} belongs to {owner}, and what its owner puts there would run with our rights",
        remedy="If nobody needs it, drop it; if it is Penstock's, give it to the role that runs the "
        f"pipeline: alter {kind} … owner to …",
    )

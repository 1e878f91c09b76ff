"""What a role needs at a PostgreSQL destination, as SQL for a DBA: `penstock grant`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from penstock.destinations.postgres.copy.table_copy import SCHEMA
from penstock.model import TableName
from penstock.postgres.grants import LEDGER, connect, make_role, own_schemas
from penstock.postgres.providers import Ways
from penstock.postgres.script import Script


@dataclass(frozen=True, slots=True)
class DestinationNeeds:
    role: str
    ways: Ways
    targets: Sequence[TableName]
    """The tables as they are called here; where no source could be asked, those that the configuration names,
    or no more than their schema."""
    complete: bool
    """Whether these are all."""
    create_tables: bool


def chosen(targets: Sequence[TableName]) -> sql.Composable:
    """Return a query of the targets, and of who owns those that are there."""
    rows = [sql.SQL("({}, {})").format(sql.Literal(name.schema), sql.Literal(name.name)) for name in targets]
    values = sql.SQL("values\n    {}").format(sql.SQL(",\n    ").join(rows))
    return sql.SQL(
        "select t.schema, t.name, pg_get_userbyid(c.relowner) as owner\n"
        "from ({}) t (schema, name)\n"
        "left join pg_namespace n on n.nspname = t.schema\n"
        "left join pg_class c on c.relnamespace = n.oid and c.relname = t.name and c.relkind in ('r', 'p')"
    ).format(values if targets else sql.SQL("select '', '' where false"))


def destination(script: Script, needs: DestinationNeeds) -> None:
    """Write everything that the role needs at a destination."""
    role = sql.Literal(needs.role)
    make_role(script, needs.role)
    connect(script, needs.role, ", temporary")
    own_schemas(script, needs.role, {SCHEMA: LEDGER})
    script.blank()
    _targets(script, needs, role)
    if not needs.complete:
        script.note(
            "The source could not be asked which tables there are. For each further schema of theirs:"
        )
        script.note("create schema …; grant create, usage on schema … to …;")
    script.blank()
    script.note("To write as PostgreSQL's own replication does: no triggers, no foreign keys.")
    setting = sql.SQL("select format('grant set on parameter session_replication_role to %I{}', {})")
    if needs.ways.parameters:
        script.run(setting.format(sql.SQL(""), role))
    else:
        script.note(
            "If the provider lets you; without it triggers and foreign keys of the tables are at work:"
        )
        script.remark(setting.format(sql.SQL(";"), role))


def _targets(script: Script, needs: DestinationNeeds, role: sql.Literal) -> None:
    script.note("Where the tables go. What the role makes is its own; what is there already is granted.")
    if needs.create_tables:
        script.run(
            sql.SQL(
                "select format('create schema if not exists %I', schema)\n"
                "from chosen where not exists (select from pg_namespace where nspname = schema)\n"
                "group by schema order by schema"
            )
        )
    rights = "create, usage" if needs.create_tables else "usage"
    script.run(
        sql.SQL("select format({}, schema, {})\nfrom chosen group by schema order by schema").format(
            sql.Literal(f"grant {rights} on schema %I to %I"), role
        )
    )
    script.run(
        sql.SQL(
            "select format('grant select, insert, update, delete, truncate on table %I.%I to %I',\n"
            "              schema, name, {0})\n"
            "from chosen where owner <> {0} order by schema, name"
        ).format(role)
    )
    if not needs.create_tables:
        script.remark(
            sql.SQL(
                "select format('%I.%I is not there: create it, then run this again', schema, name)\n"
                "from chosen where owner is null and name <> '' order by schema, name"
            )
        )
